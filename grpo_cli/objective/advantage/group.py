"""Advantages within a group, and the record's own.

Each function returns [R], one advantage per response, or ``PerToken`` with [N]. Group statistics
are exactly rounded sums (``Groups.sum``), so the order of the responses changes no bit, and a group
whose rewards are all equal, as that of a single response, has advantage exactly 0.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByResponse, choice
from grpo_cli.objective.results import PerToken


@choice("advantage", "given", given=True)
def given(advantages: F64 | PerToken) -> F64 | PerToken:
    """The record's own advantages, unchanged.

    Every variant takes them from records that have them, unless ``--advantage`` names a choice.
    """
    return advantages


@choice("advantage", "raw", "none")
def raw(rewards: F64) -> F64:
    """The reward itself: A = r, no baseline."""
    return rewards


@choice("advantage", "group-mean", "dr_grpo")
def group_mean(rewards: F64, groups: Groups) -> F64:
    """A = r − r̄ over the group.

    References:
        Liu et al., Dr. GRPO, 2025 (arXiv 2503.20783).
    """
    return groups.offsets(rewards)


@choice("advantage", "group-std", "grpo", std_ddof=1, std_eps=1e-08, std_min=0.0)
def group_std(
    rewards: F64, groups: Groups, *, std_ddof: int, std_eps: ByResponse, std_min: ByResponse
) -> F64:
    """A = (r − r̄) / (σ + eps) over the group, σ² = Σ(r − r̄)² / (G − ddof).

    Args:
        std_ddof: 1 divides by G−1 (torch's default), 0 by G (numpy's).
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
            "std_ddof", f"expected less than the {size} responses of the group, got {ddof}"
        )
    return np.maximum(sizes - ddof, 1).astype(np.float64)


@choice("advantage", "leave-one-out", "rloo")
def leave_one_out(rewards: F64, groups: Groups) -> F64:
    """A = r − mean of the group's other rewards = (r − r̄)·G/(G−1).

    A group of one response has no others and advantage 0.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740). For a single response
        verl's ``rloo`` keeps the raw reward; verl's ``rloo_vectorized`` and SkyRL give 0.
    """
    sizes = groups.sizes[groups.index]
    return groups.offsets(rewards) * (sizes / np.maximum(sizes - 1, 1))


@choice("advantage", "length-weighted", "opo")
def length_weighted(rewards: F64, lengths: I64, groups: Groups) -> F64:
    """OPO: A = r − Σⱼ|oⱼ|·rⱼ / Σⱼ|oⱼ|; the baseline is the group's mean reward weighted by length.

    Args:
        lengths: [R] tokens of each response; one without tokens has no part in the baseline.

    References:
        Hao et al., On-Policy RL with Optimal Reward Baseline (OPO), 2025 (arXiv 2505.23585).
    """
    offsets = groups.offsets(rewards)
    tokens = np.maximum(groups.sum(lengths.astype(np.float64)), 1.0)
    return offsets - (groups.sum(lengths * offsets) / tokens)[groups.index]


@choice("advantage", "pass-at-k", "grpo_passk")
def pass_at_k(rewards: F64, groups: Groups) -> F64:
    """A = max r − max of the group's other rewards: the response's contribution to pass@G.

    Only a single best response has an advantage: its lead over the second best. If several share
    the best reward, all advantages are 0.

    References:
        Tang et al., Optimizing Language Models for Inference Time Objectives using RL, 2025 (arXiv
        2503.19595). verl's ``grpo_passk`` also divides by the group's std and does not accept a
        group of one, which has advantage 0 here.
    """
    best = groups.reduce(lambda rows: rows.max(axis=1), rewards)[groups.index]
    seconds = groups.reduce(lambda rows: np.sort(rows)[:, max(rows.shape[1] - 2, 0)], rewards)
    return np.where(rewards == best, best - seconds[groups.index], 0.0)


@choice("advantage", "max-rl", "max_rl", "maxrl")
def max_rl(rewards: F64, groups: Groups) -> F64:
    """A = (r − r̄)/r̄, or 0 in a group with r̄ <= 0.

    Meant for rewards 0 and 1. Then Σ A·∇log π is the mean of ∇log π over successes minus its mean
    over all responses, which follows the log-likelihood of success.

    References:
        Tajwar et al., Maximum Likelihood Reinforcement Learning (MaxRL), 2026 (arXiv 2602.02710).
        SkyRL divides by r̄ + 1e-6 and so flips the sign of a negative mean.
    """
    means = (groups.sum(rewards) / np.maximum(groups.sizes, 1))[groups.index]
    offsets = groups.offsets(rewards)
    return np.divide(offsets, means, out=np.zeros_like(offsets), where=(means > 0) & (offsets != 0))
