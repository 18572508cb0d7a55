"""NeMo-RL's GRPO and GDPO: mean and std of the group's other responses; and its distillation."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.advantage.decoupled import of_every_function
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.exact_sums import row_offsets, row_sums
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, PerToken, Sample


def leave_one_out_std(
    rewards: F64,
    groups: Groups,
    *,
    std_eps: float,
    advantage_clip_low: float | None,
    advantage_clip_high: float | None,
) -> F64:
    """A = (r − m) / (s + eps), m and s being the mean and the std (ddof 1) of the others.

    Where the others are all equal, s = 0 and nothing is divided: in [1, 0, 0, 0] the winner has
    A = 1 and the losers −0.577. A group of equal rewards has A = 0.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        std_eps: added to s.
        advantage_clip_low, advantage_clip_high: bounds on A; None: none.

    References:
        NeMo-RL's GRPO with ``use_leave_one_out_baseline``, its default. AReaL's LOO takes the std
        around the left-out mean, so that the factor G/(G−1) cancels.
    """
    low = -np.inf if advantage_clip_low is None else advantage_clip_low
    high = np.inf if advantage_clip_high is None else advantage_clip_high
    return np.clip(_against_others(rewards, groups, std_eps), low, high)


def _against_others(rewards: F64, groups: Groups, std_eps: float) -> F64:
    return groups.map(lambda rows: _each_against_others(rows, std_eps), rewards)


_TOGETHER = 1 << 18
"""Rewards that are compared at once: numpy's overhead is small, and so is memory."""


def _each_against_others(rows: F64, std_eps: float) -> F64:
    """[n, k] every element of [n, k] against the k − 1 others of its row."""
    size = rows.shape[1]
    flat = np.zeros(rows.size)
    # A common offset changes nothing, and however large it is it must cost no digit.
    offsets = row_offsets(rows)
    if size == 1:
        return flat.reshape(rows.shape)
    for start in range(0, rows.size, step := max(_TOGETHER // size, 1)):
        row, own = np.divmod(np.arange(start, min(start + step, rows.size)), size)
        places = np.arange(size - 1) + (np.arange(size - 1) >= own[:, None])
        others = rows[row[:, None], places]
        alike = (others == others[:, :1]).all(axis=1)
        scores = _standardised(offsets[row, own], offsets[row[:, None], places], std_eps)
        flat[start : start + step] = np.where(alike, rows[row, own] - others[:, 0], scores)
    found: F64 = flat.reshape(rows.shape)
    found[(rows == rows[:, :1]).all(axis=1)] = 0.0
    return found


def _standardised(own: F64, others: F64, std_eps: float) -> F64:
    """[m] one reward each, [m], against others [m, k − 1]."""
    count = others.shape[1]
    mean = row_sums(others) / count
    squares = row_sums(np.square(others - mean[:, None]))
    spread = np.sqrt(squares / max(count - 1, 1)) + std_eps
    with np.errstate(divide="ignore", invalid="ignore"):
        found: F64 = (own - mean) / spread
    return found


def gdpo(
    reward_columns: F64,
    groups: Groups,
    moments: Moments,
    reward_weights: F64 | None = None,
    *,
    std_eps: float,
) -> F64:
    """NeMo-RL's GDPO: reward functions group-normalised, added up, then (A − m)/σ over the batch.

    As its recipe has it, with use_leave_one_out_baseline false: group mean and σ of all responses.
    The elements of the batch are responses, m the mean of their A; the second σ has ddof 1 and no
    eps, and where it is 0 nothing is divided.

    Args:
        reward_columns: [R, K] one reward per response and reward function.
        groups: which responses answer the same prompt.
        moments: of the sums, over the responses of the batch.
        reward_weights: [K] what each counts in the sum; None: ones. NeMo-RL's are in the order of
            the functions' names.
        std_eps: added to the σ of each function in the group.

    References:
        GDPO, 2026 (arXiv 2601.05242). verl whitens over tokens and adds an eps.
    """
    return _scaled(_sums(reward_columns, groups, reward_weights, std_eps=std_eps), moments)


def gdpo_leave_one_out(
    reward_columns: F64,
    groups: Groups,
    moments: Moments,
    reward_weights: F64 | None = None,
    *,
    std_eps: float,
) -> F64:
    """``nemo-rl/gdpo`` with each reward function normalised as in ``nemo-rl/grpo``.

    References:
        GDPO, 2026 (arXiv 2601.05242); NeMo-RL's default configuration, not its recipe.
    """
    sums = _sums_of_others(reward_columns, groups, reward_weights, std_eps=std_eps)
    return _scaled(sums, moments)


def _sums(
    reward_columns: F64, groups: Groups, reward_weights: F64 | None = None, *, std_eps: float
) -> F64:
    parts = [
        group_std(one, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
        for one in of_every_function(reward_columns)
    ]
    return _added(parts, reward_weights)


def _sums_of_others(
    reward_columns: F64, groups: Groups, reward_weights: F64 | None = None, *, std_eps: float
) -> F64:
    every = of_every_function(reward_columns)
    parts = [_against_others(one, groups, std_eps) for one in every]
    return _added(parts, reward_weights)


def _added(parts: list[F64], weights: F64 | None) -> F64:
    if weights is not None:
        parts = [weight * part for weight, part in zip(weights.tolist(), parts, strict=True)]
    return np.sum(parts, axis=0)


def _scaled(sums: F64, moments: Moments) -> F64:
    sigma = np.where(moments.count > 1.0, moments.std(1), 0.0)
    return (sums - moments.mean) / np.where(sigma > 0.0, sigma, 1.0)


def _sample(
    reward_columns: F64, groups: Groups, reward_weights: F64 | None = None, *, std_eps: float
) -> Sample:
    sums = _sums(reward_columns, groups, reward_weights, std_eps=std_eps)
    return Sample(sums, np.ones_like(sums))


def _sample_of_others(
    reward_columns: F64, groups: Groups, reward_weights: F64 | None = None, *, std_eps: float
) -> Sample:
    sums = _sums_of_others(reward_columns, groups, reward_weights, std_eps=std_eps)
    return Sample(sums, np.ones_like(sums))


def distilled(log_probs_old: F64, log_probs_ref: F64) -> PerToken:
    """A = log π_ref − log π_old at each token, the reference being the teacher; no rewards.

    Args:
        log_probs_old, log_probs_ref: [N] nats.

    References:
        MOPD, 2026 (arXiv 2601.02780), eq. 8; NeMo-RL's ``OPDAdvantageEstimator``.
    """
    return PerToken(log_probs_ref - log_probs_old)


_EPS = {"std_eps": 1e-6}

CHOICES = {
    "nemo-rl/grpo": Choice(
        leave_one_out_std, {**_EPS, "advantage_clip_low": None, "advantage_clip_high": None}
    ),
    "nemo-rl/gdpo": Choice(gdpo, _EPS, _sample),
    "nemo-rl/gdpo-leave-one-out": Choice(gdpo_leave_one_out, _EPS, _sample_of_others),
    "nemo-rl/opd": Choice(distilled),
}
