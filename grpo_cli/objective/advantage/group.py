"""Advantages within a group, and the record's own.

Each function returns [R], one advantage per response, or ``PerToken`` with [N]. Group statistics
are exactly rounded sums (``Groups.sum``), so the order of the responses changes no bit, and a group
whose rewards are all equal has advantage exactly 0.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import PerToken


def given(advantages: F64 | PerToken) -> F64 | PerToken:
    """The advantages that the record gives, as they are."""
    return advantages


def raw(rewards: F64) -> F64:
    """The reward itself: A = r, no baseline."""
    return rewards


def group_mean(rewards: F64, groups: Groups) -> F64:
    """A = r − r̄ over the group.

    References:
        Liu et al., Dr. GRPO, 2025 (arXiv 2503.20783).
    """
    return groups.offsets(rewards)


def group_std(
    rewards: F64, groups: Groups, *, std_ddof: int, std_eps: float, std_min: float
) -> F64:
    """A = (r − r̄) / (σ + eps) over the group, σ² = Σ(r − r̄)² / (G − ddof).

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        std_ddof: 1 divides by G−1 (torch's default), 0 by G (numpy's).
        std_eps: added to σ.
        std_min: a group with σ below it has advantage 0.

    Raises:
        HyperparameterError: where ``std_ddof`` is not less than a group's size; a group of one
            has advantage 0 for ddof 0 and 1, since its rewards are all equal.

    References:
        Shao et al., DeepSeekMath, 2024 (arXiv 2402.03300); it does not say which σ. TRL: ddof 1,
        eps 1e-4; verl, slime, ROLL: ddof 1, 1e-6; OpenRLHF: ddof 1, 1e-9; open-instruct: ddof 0,
        1e-8.
    """
    offsets = groups.offsets(rewards)
    free = _free(groups, std_ddof)
    sigma = np.sqrt(groups.sum(offsets * offsets) / free)[groups.index]
    moved = (offsets != 0.0) & (sigma >= std_min)
    return np.divide(offsets, sigma + std_eps, out=np.zeros_like(offsets), where=moved)


def _free(groups: Groups, ddof: int) -> F64:
    """[groups] G − ddof; 1 for a group of one, whose offset is 0 whatever it is divided by."""
    sizes = groups.sizes
    bad = np.flatnonzero((sizes <= ddof) & (np.maximum(sizes, ddof) > 1))
    if len(bad):
        size = int(sizes[bad[0]])
        raise HyperparameterError(
            "std_ddof", f"expected less than the group's {size} responses, got {ddof}"
        )
    return np.maximum(sizes - ddof, 1).astype(np.float64)


_STD = {"std_ddof": 1, "std_eps": 1e-8, "std_min": 0.0}

CHOICES = {
    "given": Choice(given, given=True),
    "raw": Choice(raw),
    "group-mean": Choice(group_mean),
    "group-std": Choice(group_std, _STD),
}
ALIASES = {"grpo": "group-std", "dr_grpo": "group-mean", "none": "raw"}
