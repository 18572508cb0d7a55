"""verl's advantage estimators, with its constants and its rules for groups of one.

verl adds up a response's token rewards to one score s, which is the reward here. Its group mean of
a group of one is 0 (and its std 1), so a lone response keeps its raw reward. Equal rewards give
exactly 0 here; in verl they may leave rounding noise, up to 0.06 in float32 (s = 0.7, eight times).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.advantage.batch import of_every_function, over_batch
from grpo_cli.objective.advantage.group import leave_one_out, length_weighted, pass_at_k
from grpo_cli.objective.advantage.tokens import gae, remax, returns, to_go, whiten
from grpo_cli.objective.advantage.turns import once_per_trajectory
from grpo_cli.objective.arithmetic.groups import Groups, suffix_sums
from grpo_cli.objective.choice import choice, table
from grpo_cli.objective.results import Moments, PerToken, Sample

_EPS = 1e-6  # verl's epsilon, which none of its settings changes
_LEAST = 1e-8  # what verl adds to the denominator of a baseline

table("advantage", "verl").aliases.update(
    {
        "verl/grpo_vectorized": "verl/grpo",
        "grpo_vectorized": "group-std",
        "rloo_vectorized": "leave-one-out",
    }
)


@choice("advantage", "verl/grpo")
def grpo(rewards: F64, groups: Groups) -> F64:
    """A = (s − μ) / (σ + 1e-6) over the group, σ with ddof 1; for one response s / (1 + 1e-6).

    verl's ``grpo`` and ``grpo_vectorized``, which computes its statistics in float32.
    """
    return nostd(rewards, groups) / (_std(rewards, groups)[groups.index] + _EPS)


choice("advantage", "verl/grpo_multi_trajectories")(
    once_per_trajectory(
        grpo,
        """``verl/grpo`` of each trajectory's last response; the others share its advantage.

    A trajectory counts once, however many outputs its agent loop has.

    Args:
        rewards: [R] s; those of a trajectory's last response count alone.

    References:
        verl 0.9.1, ``compute_advantage_for_multi_trajectories``; only its grpo uses it, other
        estimators count each response. SkyRL's ``step_wise_trajectories``; agent-lightning's
        ``enable_rollout_level_advantage``.
    """,
    )
)


@choice("advantage", "verl/grpo_nostd")
def nostd(rewards: F64, groups: Groups) -> F64:
    """A = s − μ over the group; A = s for a group of one.

    verl's ``grpo`` with ``norm_adv_by_std_in_grpo=False``.
    """
    return np.where(_alone(groups), rewards, groups.offsets(rewards))


def _alone(groups: Groups) -> NDArray[np.bool_]:
    return groups.sizes[groups.index] == 1


def _std(rewards: F64, groups: Groups) -> F64:
    """[groups] σ with G − 1; 1 for a group of one."""
    squares = groups.sum(np.square(groups.offsets(rewards)))
    spread = np.sqrt(squares / np.maximum(groups.sizes - 1, 1))
    return np.where(groups.sizes == 1, 1.0, spread)


@choice("advantage", "verl/rloo")
def rloo(rewards: F64, groups: Groups) -> F64:
    """``leave-one-out``, but A = s for a group of one.

    verl's ``rloo_vectorized`` gives a group of one 0, as ``leave-one-out`` does.
    """
    return np.where(_alone(groups), rewards, leave_one_out(rewards, groups))


choice("advantage", "verl/rloo_vectorized")(leave_one_out)


@choice("advantage", "verl/opo")
def opo(rewards: F64, groups: Groups, lengths: I64) -> F64:
    """``length-weighted``, but A = s for a group of one."""
    return np.where(_alone(groups), rewards, length_weighted(rewards, lengths, groups))


@choice("advantage", "verl/grpo_passk")
def passk(rewards: F64, groups: Groups) -> F64:
    """``verl/grpo_passk_nostd`` divided by σ + 1e-6, σ with ddof 1."""
    return passk_nostd(rewards, groups) / (_std(rewards, groups)[groups.index] + _EPS)


@choice("advantage", "verl/grpo_passk_nostd")
def passk_nostd(rewards: F64, groups: Groups) -> F64:
    """``pass-at-k``, which refuses a group of one.

    Raises:
        InputError: for a group of one.
    """
    if (groups.sizes[groups.index] < 2).any():
        raise InputError(
            "expected at least 2 responses in every group for pass@k, got a group of 1",
            path="rewards",
        )
    return pass_at_k(rewards, groups)


def _rewarded(rewards: F64) -> Sample:
    return Sample((rewards != 0.0).astype(np.float64), np.ones(len(rewards)))


@choice("advantage", "verl/gpg", measure=_rewarded)
def gpg(rewards: F64, groups: Groups, moments: Moments) -> F64:
    """A = α·(s − μ), α = responses / responses with s ≠ 0, over the batch.

    α counts nonzero scores, not groups with different rewards, so it depends on the reward values
    (0/1 or ±1).

    References:
        Chu et al., GPG, 2025 (arXiv 2504.02546).
    """
    rewarded = np.maximum(np.round(moments.mean * moments.count), 1.0)
    return moments.count / rewarded * nostd(rewards, groups)


choice("advantage", "verl/reinforce_plus_plus", gamma=1.0)(
    over_batch(
        whiten,
        doc="""REINFORCE++: the discounted reward-to-go, whitened over the tokens of the batch.

    The reward is on the last token of a response. Masked tokens do not discount it.

    Args:
        moments: mean and std of the reward-to-go over the tokens of the batch.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262).
    """,
    )(returns)
)


@choice("advantage", "verl/reinforce_plus_plus_baseline")
@over_batch(whiten)
def plus_plus_baseline(rewards: F64, groups: Groups) -> F64:
    """REINFORCE++ with a baseline: s − μ, whitened over the tokens of the batch.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262).
    """
    return nostd(rewards, groups)


@choice("advantage", "verl/gdpo")
@over_batch(whiten)
def gdpo(reward_columns: F64, groups: Groups, reward_weights: F64 | None = None) -> F64:
    """GDPO: each reward function as in ``verl/grpo``, added up, whitened over the batch's tokens.

    References:
        Liu et al., GDPO, 2026 (arXiv 2601.05242). verl can weight the functions; here they count
        equally.
    """
    parts = [grpo(column, groups) for column in of_every_function(reward_columns)]
    if reward_weights is not None:
        parts = [weight * part for weight, part in zip(reward_weights, parts, strict=True)]
    return np.sum(parts, axis=0)


choice("advantage", "verl/gae", gamma=1.0, gae_lambda=1.0)(
    over_batch(
        whiten,
        doc="""``gae``, whitened over the tokens of the batch.

    Args:
        task_rewards, token_penalty, values, responses: as in ``gae``.
        moments: mean and std of the advantages over the tokens of the batch.
        gae_lambda: verl's ``lam``, 1 by default.
    """,
    )(gae)
)


choice("advantage", "verl/remax")(remax)


@choice("advantage", "verl/optimal_token_baseline")
def optimal_token_baseline(
    task_rewards: F64,
    token_penalty: F64,
    log_probs_old: F64,
    sum_pi_squared: F64,
    groups: Groups,
    responses: Segments,
    positions: I64 | None = None,
) -> PerToken:
    """OTB of verl: Aₜ = Gₜ − Bₜ, Bₜ = Σ G·W / (Σ W + 1e-8) over the group's tokens at position t.

    Wₜ = Σₛ≤ₜ (1 − 2π_old(s) + Σπ²(s)), G is the reward-to-go. Positions include masked tokens. B
    is 0 for a group of one, and at positions that only the longest response reaches. With
    rollout_is, verl multiplies W by the squared weights; this choice does not.

    Args:
        task_rewards: [R] the reward, on the last token of a response.
        sum_pi_squared: [N] Σ π_old² over the vocabulary.
        positions: [N] the columns; None: nothing is masked.

    References:
        verl 0.9.1, ``optimal_token_baseline``.
    """
    column = responses.positions if positions is None else positions
    tokens = _tokens(task_rewards, token_penalty, log_probs_old, sum_pi_squared, groups, responses)
    return _less_baseline(tokens._replace(column=column), groups, responses)


@choice("advantage", "verl/tir_optimal_token_baseline")
def tir_optimal_token_baseline(
    task_rewards: F64,
    token_penalty: F64,
    log_probs_old: F64,
    sum_pi_squared: F64,
    groups: Groups,
    responses: Segments,
) -> PerToken:
    """``verl/optimal_token_baseline`` with positions that skip masked tokens.

    For multi-turn tool use. Responses without tokens are ignored.

    References:
        verl 0.9.1, ``tir_optimal_token_baseline``.
    """
    tokens = _tokens(task_rewards, token_penalty, log_probs_old, sum_pi_squared, groups, responses)
    return _less_baseline(tokens, groups, responses)


class _Tokens(NamedTuple):
    """[N] what a baseline is made of: G, W, the column, and the group's number."""

    returns: F64
    energy: F64
    column: I64
    group: I64


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
    return _Tokens(returns, energy, responses.positions, responses.spread(groups.index))


def _less_baseline(tokens: _Tokens, groups: Groups, responses: Segments) -> PerToken:
    if not responses.total:
        return PerToken(tokens.returns)
    width = int(tokens.column.max()) + 1
    place = tokens.group * width + tokens.column
    _, cell = np.unique(place, return_inverse=True)
    cells = Groups(cell, int(cell.max()) + 1)
    weighed = cells.sum(tokens.returns * tokens.energy)
    baseline = (weighed / (cells.sum(tokens.energy) + _LEAST))[cell]
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
