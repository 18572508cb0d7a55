"""verl's advantage estimators, with its constants and its rules for groups of one.

verl adds up a response's token rewards to one score s, which is the reward here. Its group mean of
a group of one is 0 (and its std 1), so a lone response keeps its raw reward. Equal rewards give
exactly 0 here; in verl they may leave rounding noise, up to 0.06 in float32 (s = 0.7, eight times).
Those that read more columns, ReMax, GAE and the optimal token baselines, are in baseline.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.advantage.baseline import leave_one_out, length_weighted, pass_at_k
from grpo_cli.objective.advantage.decoupled import of_every_function
from grpo_cli.objective.advantage.whiten import to_go, whiten
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, PerToken, Sample

_EPS = 1e-6  # verl's epsilon, which none of its settings changes


def nostd(rewards: F64, groups: Groups) -> F64:
    """A = s − μ over the group; A = s for a group of one.

    verl's ``grpo`` with ``norm_adv_by_std_in_grpo=False``.
    """
    return np.where(_alone(groups), rewards, groups.offsets(rewards))


def grpo(rewards: F64, groups: Groups) -> F64:
    """A = (s − μ) / (σ + 1e-6) over the group, σ with G − 1; A = s / (1 + 1e-6) for a group of one.

    verl's ``grpo`` and ``grpo_vectorized``; the latter takes its statistics in float32.
    """
    return nostd(rewards, groups) / (_std(rewards, groups)[groups.index] + _EPS)


def rloo(rewards: F64, groups: Groups) -> F64:
    """``leave-one-out``, but A = s for a group of one.

    verl's ``rloo_vectorized`` gives a group of one 0, as ``leave-one-out`` does.
    """
    return np.where(_alone(groups), rewards, leave_one_out(rewards, groups))


def opo(rewards: F64, groups: Groups, lengths: I64) -> F64:
    """``length-weighted``, but A = s for a group of one."""
    return np.where(_alone(groups), rewards, length_weighted(rewards, lengths, groups))


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


def passk(rewards: F64, groups: Groups) -> F64:
    """``verl/grpo_passk_nostd`` over σ + 1e-6, σ with G − 1."""
    return passk_nostd(rewards, groups) / (_std(rewards, groups)[groups.index] + _EPS)


def gpg(rewards: F64, groups: Groups, moments: Moments) -> F64:
    """A = α·(s − μ), α = responses / responses with s ≠ 0, over the batch.

    α counts non-zero scores, not live groups: it depends on how the reward is coded (0/1 or ±1).

    References:
        Chu et al., GPG, 2025 (arXiv 2504.02546).
    """
    rewarded = np.maximum(np.round(moments.mean * moments.count), 1.0)
    return moments.count / rewarded * nostd(rewards, groups)


def _rewarded(rewards: F64) -> Sample:
    return Sample((rewards != 0.0).astype(np.float64), np.ones(len(rewards)))


def plus_plus_baseline(rewards: F64, groups: Groups, moments: Moments) -> F64:
    """REINFORCE++ with a baseline: s − μ, whitened over the tokens of the batch.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262).
    """
    return whiten(nostd(rewards, groups), moments)


def _baselined(rewards: F64, groups: Groups, lengths: I64) -> Sample:
    return Sample(nostd(rewards, groups), lengths.astype(np.float64))


def plus_plus(
    task_rewards: F64, token_penalty: F64, responses: Segments, moments: Moments, *, gamma: float
) -> PerToken:
    """REINFORCE++: the discounted reward-to-go, whitened over the tokens of the batch.

    The reward stands on a response's last token; masked tokens neither discount nor stop it.

    Args:
        task_rewards: [R] without the KL.
        token_penalty: [N] what a KL in the reward takes off at each token.
        responses: cuts the tokens into responses.
        moments: of the reward-to-go over the tokens of the batch.
        gamma: discount per token.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262).
    """
    returns = to_go(task_rewards, token_penalty, responses, gamma)
    return PerToken(whiten(returns, Moments(*(responses.spread(part) for part in moments))))


def _returns(task_rewards: F64, token_penalty: F64, responses: Segments, *, gamma: float) -> Sample:
    returns = to_go(task_rewards, token_penalty, responses, gamma)
    return Sample(returns, np.ones(len(returns)), per_token=True)


def gdpo(
    reward_columns: F64, groups: Groups, moments: Moments, reward_weights: F64 | None = None
) -> F64:
    """GDPO: each reward function as in ``verl/grpo``, added up, whitened over the batch's tokens.

    References:
        Liu et al., GDPO, 2026 (arXiv 2601.05242). verl can weigh the functions; here they count
        equally.
    """
    return whiten(_decoupled(reward_columns, groups, reward_weights), moments)


def _decoupled(reward_columns: F64, groups: Groups, weights: F64 | None) -> F64:
    parts = [grpo(column, groups) for column in of_every_function(reward_columns)]
    if weights is not None:
        parts = [weight * part for weight, part in zip(weights, parts, strict=True)]
    return np.sum(parts, axis=0)


def _decoupled_sample(
    reward_columns: F64, groups: Groups, lengths: I64, reward_weights: F64 | None = None
) -> Sample:
    sums = _decoupled(reward_columns, groups, reward_weights)
    return Sample(sums, lengths.astype(np.float64))


def _alone(groups: Groups) -> NDArray[np.bool_]:
    return groups.sizes[groups.index] == 1


def _std(rewards: F64, groups: Groups) -> F64:
    """[groups] σ with G − 1; 1 for a group of one."""
    squares = groups.sum(np.square(groups.offsets(rewards)))
    spread = np.sqrt(squares / np.maximum(groups.sizes - 1, 1))
    return np.where(groups.sizes == 1, 1.0, spread)


CHOICES = {
    "verl/grpo": Choice(grpo),
    "verl/grpo_nostd": Choice(nostd),
    "verl/rloo": Choice(rloo),
    "verl/rloo_vectorized": Choice(leave_one_out),
    "verl/opo": Choice(opo),
    "verl/grpo_passk": Choice(passk),
    "verl/grpo_passk_nostd": Choice(passk_nostd),
    "verl/gpg": Choice(gpg, measure=_rewarded),
    "verl/reinforce_plus_plus": Choice(plus_plus, {"gamma": 1.0}, measure=_returns),
    "verl/reinforce_plus_plus_baseline": Choice(plus_plus_baseline, measure=_baselined),
    "verl/gdpo": Choice(gdpo, measure=_decoupled_sample),
}
ALIASES = {
    "verl/grpo_vectorized": "verl/grpo",
    "grpo_vectorized": "group-std",
    "rloo_vectorized": "leave-one-out",
}
