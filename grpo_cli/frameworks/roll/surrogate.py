"""ROLL's policy losses that no paper writes so, negated."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side


def roll_topr(
    ratio: F64, advantage: F64, log_probs_new: F64, task_rewards: F64, responses: Segments
) -> Surrogate:
    """ROLL's topr: s = A·log π_θ where the reward is > 0, else sg[min(ρ, 1)]·A·log π_θ.

    The raw reward decides, so 0/1 and ±1 rewards with the same advantages may differ.

    Args:
        ratio: [N] ρ, per token.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        task_rewards: [R] one per response.
        responses: cuts the tokens into responses.

    References:
        Le Roux et al., TOPR, 2025 (arXiv 2503.14286).
    """
    failed = responses.spread(task_rewards <= 0.0)
    slope = np.where(failed, np.minimum(ratio, 1.0), 1.0) * advantage
    capped = failed & (ratio > 1.0) & (advantage != 0)
    return Surrogate(slope * log_probs_new, side(capped, np.zeros_like(capped)), None, slope)


CHOICES = {"roll/topr": Choice(roll_topr)}
