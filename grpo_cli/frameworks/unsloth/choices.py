"""Unsloth's KL, clamped inside and once more after its weight."""

from __future__ import annotations

from grpo_cli.batch import F64
from grpo_cli.objective.choice import choice
from grpo_cli.objective.kl import clamped, k3, weighed_then_clamped
from grpo_cli.objective.results import Kl


@choice("kl", "unsloth/k3", kl_weight="ratio")
def clamped_twice(log_ratio_ref: F64, ratio: F64, *, beta: float, kl_weight: str) -> Kl:
    """Unsloth's KL: k3 of d clamped to ±20, weighted by ρ, then clamped to ±10.

    Clamped tokens have no gradient; the outer clamp also stops the gradient of the ratio. TRL has
    no clamp.

    Args:
        log_ratio_ref: [N] d = log π_θ − log π_ref, nats.
        ratio: [N] ρ, at the level of the ratio stage.
        beta: the pipeline multiplies by it.
        kl_weight: "none" or "ratio" (use_bias_correction_kl).
    """
    del beta
    estimate, slope = clamped(k3, log_ratio_ref, 20.0, None)
    return weighed_then_clamped(estimate, slope, ratio if kl_weight == "ratio" else None)
