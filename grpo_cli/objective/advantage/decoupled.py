"""The advantage of several reward functions, each normalised on its own (GDPO)."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.errors import InputError
from grpo_cli.objective.advantage.batch import scaled
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


def decoupled(
    reward_columns: F64,
    groups: Groups,
    moments: Moments,
    reward_weights: F64 | None = None,
    *,
    std_ddof: int,
    std_eps: float,
) -> F64:
    """A = S/(σ_batch(S) + eps), S = Σₖ wₖ·(rₖ − r̄ₖ)/(σₖ + eps) over the group.

    Each reward function is normalised within the group before they are added, so that none is
    drowned by another's scale. The mean of S, which the paper takes off, is 0. A KL in the reward
    has no part in it: it belongs to no function.

    Args:
        reward_columns: [R, K] one reward per response and reward function.
        groups: which responses answer the same prompt.
        moments: of S over the batch, one element per response.
        reward_weights: [K] wₖ; None: ones.
        std_ddof, std_eps: of every σ, in both steps.

    References:
        GDPO, 2026 (arXiv 2601.05242). TRL: eps 1e-4 in both steps; ms-swift: 1e-8; verl: 1e-6,
        then whitens over tokens; NeMo-RL: leave-one-out in the first step, no eps in the second.
    """
    sums = _sums(reward_columns, groups, reward_weights, std_ddof, std_eps)
    return scaled(sums, moments, std_ddof, std_eps)


def _sums(
    reward_columns: F64, groups: Groups, weights: F64 | None, std_ddof: int, std_eps: float
) -> F64:
    total = np.zeros(len(reward_columns))
    for k, column in enumerate(reward_columns.T):
        own = _normalised(column, groups, std_ddof, std_eps)
        total += own if weights is None else weights[k] * own
    return total


def _normalised(column: F64, groups: Groups, std_ddof: int, std_eps: float) -> F64:
    """[R] a function's rewards among those that it gave; 0 where it gave none."""
    given = ~np.isnan(column)
    found = np.zeros(len(column))
    among = Groups(groups.index[given], groups.count)
    found[given] = group_std(column[given], among, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0)
    return found


def _measure(
    reward_columns: F64,
    groups: Groups,
    reward_weights: F64 | None = None,
    *,
    std_ddof: int,
    std_eps: float,
) -> Sample:
    sums = _sums(reward_columns, groups, reward_weights, std_ddof, std_eps)
    return Sample(sums, np.ones_like(sums))


def of_every_function(reward_columns: F64) -> F64:
    """[K, R] the reward functions, for a GDPO that has no rule for one that gave none.

    Raises:
        InputError: where one gave none.
    """
    if np.isnan(reward_columns).any():
        raise InputError(
            "expected a reward of every function, got null of one; this GDPO has no rule for that "
            "(--advantage decoupled counts it nothing, as TRL does)",
            path="rewards",
        )
    return reward_columns.T


CHOICES = {"decoupled": Choice(decoupled, {"std_ddof": 1, "std_eps": 1e-8}, _measure)}
ALIASES = {"gdpo": "decoupled", "normalize_then_sum": "decoupled"}
