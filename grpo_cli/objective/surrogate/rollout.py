"""Surrogates whose only other policy is the engine that sampled: prime-rl's, and Tinker's DRO.

The ratio beside them is ``rollout``, w = π_θ/π_rollout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.surrogate.divergence import dppo_tv
from grpo_cli.objective.surrogate.offpolicy import dro
from grpo_cli.objective.surrogate.result import Surrogate, side

Mask = NDArray[np.bool_]


def dppo_rollout(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    divergence_low: float,
    divergence_high: float,
) -> Surrogate:
    """``dppo-tv`` against the sampling engine: s = w·A, 0 where π_θ − π_rollout went too far.

    Too far is above δ_high where A > 0, and below −δ_low where A < 0.

    Args:
        ratio: [N] w.
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats.
        divergence_low, divergence_high: δ, in probability.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879); prime-rl's default loss.
    """
    return dppo_tv(
        ratio,
        advantage,
        log_probs_new,
        log_probs_rollout,
        divergence_low=divergence_low,
        divergence_high=divergence_high,
    )


def ipo(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    ipo_threshold: float,
) -> Surrogate:
    """prime-rl's ipo: s = w·A, 0 where |π_θ − π_rollout| > threshold, whatever the sign of A.

    It has nothing to do with Identity Preference Optimization.

    Args:
        ratio: [N] w.
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats.
        ipo_threshold: in probability.
    """
    moved = np.exp(log_probs_new) - np.exp(log_probs_rollout)
    high, low = moved > ipo_threshold, moved < -ipo_threshold
    return _dropped(ratio, advantage, high & (advantage != 0), low & (advantage != 0))


def ref_kl(
    ratio: F64,
    log_ratio_ref: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    divergence_low: float,
) -> Surrogate:
    """prime-rl's on-policy distillation: s = w·sg[log π_ref − log π_θ], whatever the rewards.

    A token is dropped where π_θ − π_rollout < −δ_low.

    Args:
        ratio: [N] w.
        log_ratio_ref: [N] log π_θ − log π_ref, π_ref being the teacher, nats.
        log_probs_new, log_probs_rollout: [N] nats.
        divergence_low: δ, in probability.
    """
    low = np.exp(log_probs_new) - np.exp(log_probs_rollout) < -divergence_low
    return _dropped(ratio, -log_ratio_ref, np.zeros_like(low), low)


def dro_rollout(
    log_probs_new: F64, log_probs_rollout: F64, advantage: F64, *, dro_beta: float
) -> Surrogate:
    """``dro`` with its pull towards the sampling engine: s = A·log π_θ − (β/2)·(log w)².

    References:
        Richemond et al., DRO, 2024 (arXiv 2405.19107), as Tinker computes it, token by token.
    """
    return dro(log_probs_new - log_probs_rollout, advantage, log_probs_new, dro_beta=dro_beta)


def _dropped(ratio: F64, advantage: F64, high: Mask, low: Mask) -> Surrogate:
    kept = ~(high | low) & (advantage != 0)
    value = np.multiply(ratio, advantage, out=np.zeros_like(ratio), where=kept)
    return Surrogate(value, side(high, low), value, None)


_DPPO = {"divergence_low": 0.2, "divergence_high": 0.2}

CHOICES = {
    "dppo-tv-rollout": Choice(dppo_rollout, _DPPO),
    "dro-rollout": Choice(dro_rollout, {"dro_beta": 0.05}),
    "prime-rl/ipo": Choice(ipo, {"ipo_threshold": 0.1}),
    "prime-rl/ref_kl": Choice(ref_kl, {"divergence_low": 0.2}),
}
ALIASES: dict[str, str] = {}
