"""Advantages against another baseline than the group's mean, or on another scale than its std.

All are exactly 0 in a group whose rewards are all equal, and so in a group of one response.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice


def leave_one_out(rewards: F64, groups: Groups) -> F64:
    """A = r − mean of the group's other rewards = (r − r̄)·G/(G−1).

    A group of one response has no others and advantage 0.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740). For a single response
        verl's ``rloo`` keeps the raw reward; its vectorised twin and SkyRL give 0.
    """
    sizes = groups.sizes[groups.index]
    return groups.offsets(rewards) * (sizes / np.maximum(sizes - 1, 1))


def length_weighted(rewards: F64, lengths: I64, groups: Groups) -> F64:
    """A = r − Σⱼ|oⱼ|·rⱼ / Σⱼ|oⱼ|: the group's mean reward, weighed by length (OPO).

    Args:
        rewards: [R] one per response.
        lengths: [R] tokens of each response; one without tokens has no part in the baseline.
        groups: which responses answer the same prompt.

    References:
        Hao et al., On-Policy RL with Optimal Reward Baseline (OPO), 2025 (arXiv 2505.23585).
    """
    offsets = groups.offsets(rewards)
    tokens = np.maximum(groups.sum(lengths.astype(np.float64)), 1.0)
    return offsets - (groups.sum(lengths * offsets) / tokens)[groups.index]


def pass_at_k(rewards: F64, groups: Groups) -> F64:
    """A = max r − max of the group's other rewards: what the response adds to pass@G.

    Only a response that is best alone has an advantage, its lead over the second; a tie at the
    top leaves the whole group without.

    References:
        Tang et al., Optimizing Language Models for Inference Time Objectives using RL, 2025
        (arXiv 2503.19595). verl's ``grpo_passk`` divides by the group's std besides, and refuses
        a group of one, which has advantage 0 here.
    """
    best = groups.reduce(lambda rows: rows.max(axis=1), rewards)[groups.index]
    second = groups.reduce(_second, rewards)[groups.index]
    return np.where(rewards == best, best - second, 0.0)


def _second(rows: F64) -> F64:
    return np.sort(rows, axis=1)[:, max(rows.shape[1] - 2, 0)]


def max_rl(rewards: F64, groups: Groups) -> F64:
    """A = (r − r̄)/r̄; 0 in a group whose mean r̄ is not positive.

    Meant for rewards 0 and 1: then Σ A·∇log π is the mean of ∇log π over the successes, less
    its mean over all, and follows the log-likelihood of success.

    References:
        Tajwar et al., Maximum Likelihood Reinforcement Learning (MaxRL), 2026 (arXiv 2602.02710).
        SkyRL divides by r̄ + 1e-6 and so flips the sign of a negative mean.
    """
    means = (groups.sum(rewards) / np.maximum(groups.sizes, 1))[groups.index]
    offsets = groups.offsets(rewards)
    return np.divide(offsets, means, out=np.zeros_like(offsets), where=(means > 0) & (offsets != 0))


CHOICES = {
    "leave-one-out": Choice(leave_one_out),
    "length-weighted": Choice(length_weighted),
    "pass-at-k": Choice(pass_at_k),
    "max-rl": Choice(max_rl),
}
ALIASES = {
    "rloo": "leave-one-out",
    "opo": "length-weighted",
    "grpo_passk": "pass-at-k",
    "max_rl": "max-rl",
    "maxrl": "max-rl",
}
