"""An advantage that is the response's verdict alone: no baseline, good and bad weighed apart."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice


def signed(rewards: F64, *, positive_weight: float, negative_weight: float) -> F64:
    """A = w₊ where r > 0, and −w₋ elsewhere: positive and negative sample reinforcement.

    Only the sign of the reward counts, so 1 and 0 give what 1 and −1 do.

    Args:
        rewards: [R] one per response.
        positive_weight: w₊: 1 for PSR, 0 for NSR, λ for W-REINFORCE.
        negative_weight: w₋: 0 for PSR, 1 for NSR and W-REINFORCE.

    References:
        Zhu et al., The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning, 2025
        (arXiv 2506.01347), λ = 0.1. The released code takes scores of 1 and 0, and keeps any
        other score as the advantage.
    """
    return np.where(rewards > 0, positive_weight, -negative_weight) + 0.0


CHOICES = {"signed": Choice(signed, {"positive_weight": 1.0, "negative_weight": 1.0})}
ALIASES = {"psr_nsr": "signed"}
