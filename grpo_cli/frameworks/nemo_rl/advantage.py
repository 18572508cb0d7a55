"""NeMo-RL's GRPO and GDPO: mean and std of the group's other responses."""

from __future__ import annotations

import math

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


def leave_one_out_std(rewards: F64, groups: Groups, *, std_eps: float) -> F64:
    """A = (r − m) / (s + eps), m and s being the mean and the std (ddof 1) of the others.

    Where the others are all equal, s = 0 and nothing is divided: in [1, 0, 0, 0] the winner has
    A = 1 and the losers −0.577. A group of equal rewards has A = 0.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        std_eps: added to s.

    References:
        NeMo-RL's GRPO with ``use_leave_one_out_baseline``, its default. AReaL's LOO takes the std
        around the left-out mean, so that the factor G/(G−1) cancels.
    """

    def against_others(rewards: list[float]) -> list[float]:
        if min(rewards) == max(rewards):
            return [0.0] * len(rewards)
        return [_standardised(rewards, own, std_eps) for own in range(len(rewards))]

    return groups.each(against_others, rewards)


def _standardised(rewards: list[float], own: int, std_eps: float) -> float:
    others = rewards[:own] + rewards[own + 1 :]
    if min(others) == max(others):
        return rewards[own] - others[0]
    mean = math.fsum(others) / len(others)
    squares = math.fsum([(other - mean) ** 2 for other in others])
    return (rewards[own] - mean) / (math.sqrt(squares / (len(others) - 1)) + std_eps)


def gdpo(reward_columns: F64, groups: Groups, moments: Moments, *, std_eps: float) -> F64:
    """NeMo-RL's GDPO: reward functions group-normalised, added up, then (A − m)/σ over the batch.

    As its recipe has it, with use_leave_one_out_baseline false: group mean and σ of all responses.
    The elements of the batch are responses; the second σ has ddof 1 and no eps, and where it is 0
    nothing is divided.

    Args:
        reward_columns: [R, K] one reward per response and reward function.
        groups: which responses answer the same prompt.
        moments: of the sums, over the responses of the batch.
        std_eps: added to the σ of each function in the group.

    References:
        GDPO, 2026 (arXiv 2601.05242). verl whitens over tokens and adds an eps.
    """
    return _scaled(_sums(reward_columns, groups, std_eps), moments)


def gdpo_leave_one_out(
    reward_columns: F64, groups: Groups, moments: Moments, *, std_eps: float
) -> F64:
    """``nemo-rl/gdpo`` with each reward function normalised as in ``nemo-rl/grpo``.

    References:
        GDPO, 2026 (arXiv 2601.05242); NeMo-RL's default configuration, not its recipe.
    """
    return _scaled(_sums_of_others(reward_columns, groups, std_eps), moments)


def _sums(reward_columns: F64, groups: Groups, std_eps: float) -> F64:
    parts = [
        group_std(one, groups, std_ddof=1, std_eps=std_eps, std_min=0.0) for one in reward_columns.T
    ]
    return np.sum(parts, axis=0)


def _sums_of_others(reward_columns: F64, groups: Groups, std_eps: float) -> F64:
    parts = [leave_one_out_std(one, groups, std_eps=std_eps) for one in reward_columns.T]
    return np.sum(parts, axis=0)


def _scaled(sums: F64, moments: Moments) -> F64:
    sigma = np.where(moments.count > 1.0, moments.std(1), 0.0)
    return (sums - moments.mean) / np.where(sigma > 0.0, sigma, 1.0)


def _sample(reward_columns: F64, groups: Groups, *, std_eps: float) -> Sample:
    return Sample(_sums(reward_columns, groups, std_eps), np.ones(len(reward_columns)))


def _sample_of_others(reward_columns: F64, groups: Groups, *, std_eps: float) -> Sample:
    return Sample(_sums_of_others(reward_columns, groups, std_eps), np.ones(len(reward_columns)))


_EPS = {"std_eps": 1e-6}

CHOICES = {
    "nemo-rl/grpo": Choice(leave_one_out_std, _EPS),
    "nemo-rl/gdpo": Choice(gdpo, _EPS, _sample),
    "nemo-rl/gdpo-leave-one-out": Choice(gdpo_leave_one_out, _EPS, _sample_of_others),
}
