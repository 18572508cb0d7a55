"""prime-rl's length penalty, and advantages that a teacher gives in the place of rewards."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import PerToken


def ref_kl(log_ratio_ref: F64) -> PerToken:
    """On-policy distillation: A = sg[log π_ref − log π_θ], π_ref being the teacher.

    References:
        Lu et al., On-Policy Distillation, 2025; prime-rl's ``opd``. NeMo-RL has log π_old in the
        place of log π_θ, Tinker log π_rollout.
    """
    return PerToken(-log_ratio_ref)


def length_penalty(
    rewards: F64, lengths: I64, groups: Groups, *, num_output_tokens_weight: float
) -> F64:
    """A = x − x̄ over the group, x = r − w·r̄·|o|/max|o|: the longest response pays w·r̄.

    Args:
        rewards: [R] one per response.
        lengths: [R] tokens of each response.
        groups: which responses answer the same prompt.
        num_output_tokens_weight: w. Its other two terms, of input tokens and of turns, need the
            number of each, which records do not have.

    References:
        prime-rl's ``LinearLengthPenaltyConfig``.
    """
    tokens = lengths.astype(np.float64)
    longest = np.maximum(groups.reduce(lambda rows: rows.max(axis=1), tokens), 1.0)
    means = groups.sum(rewards) / np.maximum(groups.sizes, 1)
    share = tokens / longest[groups.index]
    return groups.offsets(rewards - means[groups.index] * (num_output_tokens_weight * share))


CHOICES = {
    "prime-rl/length-penalty": Choice(length_penalty, {"num_output_tokens_weight": 0.25}),
    "prime-rl/ref_kl": Choice(ref_kl, stops_gradient="the distance to the teacher is a constant"),
}
