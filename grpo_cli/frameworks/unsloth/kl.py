"""Unsloth's KL, clamped inside and once more after its weight."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import k3
from grpo_cli.objective.results import Kl, times


def weighed_then_clamped(log_ratio_ref: F64, ratio: F64, *, beta: float, kl_weight: str) -> Kl:
    """Unsloth's: k3 of d clamped to ±20, weighed with ρ, then clamped to ±10.

    A clamp that binds cuts the gradient, the outer one that of the ratio too. TRL has no clamp.

    Args:
        log_ratio_ref: [N] d = log π_θ − log π_ref, nats.
        ratio: [N] ρ, at the level of the ratio stage.
        beta: the pipeline multiplies by it.
        kl_weight: "none" or "ratio" (use_bias_correction_kl).
    """
    del beta
    inside = np.abs(log_ratio_ref) <= 20.0
    estimate, slope = k3(np.clip(log_ratio_ref, -20.0, 20.0))
    slope = np.where(inside, slope, 0.0)
    weight = ratio if kl_weight == "ratio" else np.ones_like(ratio)
    value = times(weight, estimate)
    within = np.abs(value) <= 10.0
    by_ratio = np.where(within, value, 0.0) if kl_weight == "ratio" else None
    return Kl(np.clip(value, -10.0, 10.0), np.where(within, times(weight, slope), 0.0), by_ratio)


CHOICES = {"unsloth/k3": Choice(weighed_then_clamped, {"kl_weight": "ratio"})}
