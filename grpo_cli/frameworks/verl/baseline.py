"""verl's estimators that need more of the record: GAE, and the optimal token baselines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.advantage.critic import gae, remax
from grpo_cli.objective.advantage.whiten import to_go, whiten
from grpo_cli.objective.arithmetic.groups import Groups, suffix_sums
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, PerToken, Sample

_TINY = 1e-8  # what verl adds to the denominator of a baseline


def gae_whitened(
    task_rewards: F64,
    token_penalty: F64,
    values: F64,
    responses: Segments,
    moments: Moments,
    *,
    gamma: float,
    gae_lambda: float,
) -> PerToken:
    """``gae``, whitened over the tokens of the batch.

    Args:
        task_rewards, token_penalty, values, responses: as in ``gae``.
        moments: of the advantages over the tokens of the batch.
        gamma: discount per token.
        gae_lambda: verl's ``lam``, 1 by default.
    """
    found = gae(task_rewards, token_penalty, values, responses, gamma=gamma, gae_lambda=gae_lambda)
    spread = Moments(*(responses.spread(part) for part in moments))
    return PerToken(whiten(found.values, spread))


def _unwhitened(
    task_rewards: F64,
    token_penalty: F64,
    values: F64,
    responses: Segments,
    *,
    gamma: float,
    gae_lambda: float,
) -> Sample:
    found = gae(task_rewards, token_penalty, values, responses, gamma=gamma, gae_lambda=gae_lambda)
    return Sample(found.values, np.ones(responses.total), per_token=True)


class _Tokens(NamedTuple):
    """[N] what a baseline is made of: G, W, the column, and the group's number."""

    returns: F64
    energy: F64
    column: I64
    group: I64


def optimal_token_baseline(
    task_rewards: F64,
    token_penalty: F64,
    log_probs_old: F64,
    sum_pi_squared: F64,
    groups: Groups,
    responses: Segments,
    positions: I64 | None = None,
) -> PerToken:
    """Verl's OTB: Aₜ = Gₜ − Bₜ, Bₜ = Σ G·W / (Σ W + 1e-8) over the group's tokens in column t.

    Wₜ = Σₛ≤ₜ (1 − 2π_old(s) + Σπ²(s)), G is the reward to go. B is 0 for a group of one, and where
    only the longest response of a group has tokens left: from the column whose number is the count
    of tokens of the second longest. A column is a token's place among all, masked ones included.
    With rollout_is, verl weighs W with the squared weights, which is not done here.

    Args:
        task_rewards: [R] the reward, which stands on a response's last token.
        token_penalty: [N] what a KL in the reward takes off at each token.
        log_probs_old: [N] nats.
        sum_pi_squared: [N] Σ π_old² over the vocabulary.
        groups, responses: which responses answer the same prompt; cut the tokens.
        positions: [N] the columns; None: nothing is masked.

    References:
        verl 0.9.1, ``optimal_token_baseline``.
    """
    column = _counted(responses) if positions is None else positions
    tokens = _tokens(task_rewards, token_penalty, log_probs_old, sum_pi_squared, groups, responses)
    return _less_baseline(tokens._replace(column=column), groups, responses)


def tir_optimal_token_baseline(
    task_rewards: F64,
    token_penalty: F64,
    log_probs_old: F64,
    sum_pi_squared: F64,
    groups: Groups,
    responses: Segments,
) -> PerToken:
    """``verl/optimal_token_baseline`` with the masked tokens left out of the count of columns.

    For tool use over several turns. Responses without tokens do not make a group.

    References:
        verl 0.9.1, ``tir_optimal_token_baseline``.
    """
    tokens = _tokens(task_rewards, token_penalty, log_probs_old, sum_pi_squared, groups, responses)
    return _less_baseline(tokens, groups, responses)


def _counted(responses: Segments) -> I64:
    return np.arange(responses.total) - responses.spread(responses.starts)


def _tokens(
    task_rewards: F64,
    token_penalty: F64,
    log_probs_old: F64,
    sum_pi_squared: F64,
    groups: Groups,
    responses: Segments,
) -> _Tokens:
    each = 1.0 - 2.0 * np.exp(log_probs_old) + sum_pi_squared
    backwards = Segments(responses.lengths[::-1])
    energy = suffix_sums(each[::-1].copy(), backwards, 1.0)[::-1]  # the sum up to each token
    returns = to_go(task_rewards, token_penalty, responses, 1.0)
    return _Tokens(returns, energy, _counted(responses), responses.spread(groups.index))


def _less_baseline(tokens: _Tokens, groups: Groups, responses: Segments) -> PerToken:
    if not responses.total:
        return PerToken(tokens.returns)
    width = int(tokens.column.max()) + 1
    place = tokens.group * width + tokens.column
    _, cell = np.unique(place, return_inverse=True)
    cells = Groups(cell, int(cell.max()) + 1)
    weighed = cells.sum(tokens.returns * tokens.energy)
    baseline = (weighed / (cells.sum(tokens.energy) + _TINY))[cell]
    alone = tokens.column >= responses.spread(_tails(groups, responses))
    return PerToken(tokens.returns - np.where(alone, 0.0, baseline))


def _tails(groups: Groups, responses: Segments) -> I64:
    """[R] the column from which a response has no baseline; beyond its tokens for most."""
    tails = np.full(responses.count, np.iinfo(np.int64).max)
    for group in range(groups.count):
        members = np.flatnonzero(groups.index == group)
        ranked = members[np.argsort(responses.lengths[members], kind="stable")]
        second, longest = (0, *responses.lengths[ranked].tolist())[-2:]
        if longest > second:
            tails[ranked[-1]] = second
    return tails


CHOICES = {
    "verl/gae": Choice(gae_whitened, {"gamma": 1.0, "gae_lambda": 1.0}, _unwhitened),
    "verl/remax": Choice(remax),
    "verl/optimal_token_baseline": Choice(optimal_token_baseline),
    "verl/tir_optimal_token_baseline": Choice(tir_optimal_token_baseline),
}
