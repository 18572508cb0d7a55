"""Surrogates that treat what is beyond the clip range apart: let a part through, or drop it."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side


def ce_gppo(
    ratio: F64,
    advantage: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
    gppo_beta1: float,
    gppo_beta2: float,
    dual_clip: float | None,
) -> Surrogate:
    """CE-GPPO: PPO's clip whose clipped tokens keep a gradient, β₁ or β₂ times that at the bound.

    s = β₁·(1−ε_low)·A·ρ/sg[ρ] where ρ < 1−ε_low and A < 0; β₂·(1+ε_high)·A·ρ/sg[ρ] where
    ρ > 1+ε_high and A > 0; ρ·A elsewhere. ρ/sg[ρ] is 1 and has the slope 1 in log ρ, so that value
    and slope are equal everywhere. The value jumps at the bounds where β is not 1.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        epsilon_low, epsilon_high: half-widths of the trust region, >= 0.
        gppo_beta1: β₁, below the range, where A < 0.
        gppo_beta2: β₂, above the range, where A > 0.
        dual_clip: s is at least c·A where A < 0, with slope 0 there; None: no such bound.

    Returns:
        ``clip`` is 1 and −1 on the tokens that got β₂ and β₁, and 1 where the dual clip acted.

    References:
        Su et al., CE-GPPO, 2025 (arXiv 2509.20712), without a dual clip in its equation; the
        released code has c = 10 in its scripts. GPPO of Klear-Reasoner (arXiv 2508.07629) has
        β₁ = β₂ = 1.
    """
    lower, upper = 1.0 - epsilon_low, 1.0 + epsilon_high
    low = (ratio < lower) & (advantage < 0)
    high = (ratio > upper) & (advantage > 0)
    weight = np.where(low, gppo_beta1 * lower, np.where(high, gppo_beta2 * upper, ratio))
    value = weight * advantage
    if dual_clip is None:
        return Surrogate(value, side(high, low), value, None)
    far = (advantage < 0) & (weight > dual_clip)
    bounded = np.where(far, dual_clip * advantage, value)
    return Surrogate(bounded, side(high | far, low), np.where(far, 0.0, value), None)


def minirl(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> Surrogate:
    """MiniRL: s = M·sg[π_θ/π_rollout]·A·log π_θ, M = 0 where the update went too far.

    Too far is ρ > 1+ε_high where A > 0, and ρ < 1−ε_low where A < 0, ρ being against the trainer's
    old policy; the weight is against the engine that sampled. The value contains log π_θ.

    Args:
        ratio: [N] ρ = π_θ/π_old.
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats.
        epsilon_low, epsilon_high: how far ρ may go, >= 0.

    Returns:
        ``clip`` marks the tokens that were dropped.

    References:
        Zheng et al., Stabilizing Reinforcement Learning with LLMs, 2025 (arXiv 2512.01374). The
        paper bounds the engine's part of the weight in its experiments; as it is here, the weight
        is its equation's.
    """
    high = (ratio > 1.0 + epsilon_high) & (advantage > 0)
    low = (ratio < 1.0 - epsilon_low) & (advantage < 0)
    weight = np.exp(log_probs_new - log_probs_rollout)
    weighted = np.where(high | low | (advantage == 0), 0.0, weight * advantage)
    return Surrogate(weighted * log_probs_new, side(high, low), None, weighted)


CHOICES = {
    "ce-gppo": Choice(
        ce_gppo,
        {
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "gppo_beta1": 0.5,
            "gppo_beta2": 1.0,
            "dual_clip": None,
        },
        stops_gradient="the ratio beyond the clip range",
    ),
    "minirl": Choice(minirl, {"epsilon_low": 0.2, "epsilon_high": 0.27}),
}
ALIASES = {"gppo_general": "ce-gppo", "ce_gppo": "ce-gppo"}
