"""prime-rl's surrogates; the ratio beside them is ``rollout``, w = π_θ/π_rollout."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side

Mask = NDArray[np.bool_]


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
        ipo_threshold: in probability; prime-rl's ``eps``.
    """
    moved = np.exp(log_probs_new) - np.exp(log_probs_rollout)
    high, low = moved > ipo_threshold, moved < -ipo_threshold
    return _dropped(ratio, advantage, high & (advantage != 0), low & (advantage != 0))


def icepop(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Surrogate:
    """prime-rl's icepop: s = w·A, 0 where w is outside [low, high], both of which it keeps.

    Args:
        ratio: [N] w.
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats; their difference is compared, not w.
        is_low, is_high: prime-rl's ``ratio_low`` and ``ratio_high``; None: no bound.
    """
    least = math.log(is_low) if is_low else -math.inf
    most = math.inf if is_high is None else math.log(is_high) if is_high else -math.inf
    log_ratio = log_probs_new - log_probs_rollout
    high, low = log_ratio > most, log_ratio < least
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


def _dropped(ratio: F64, advantage: F64, high: Mask, low: Mask) -> Surrogate:
    kept = ~(high | low) & (advantage != 0)
    value = np.multiply(ratio, advantage, out=np.zeros_like(ratio), where=kept)
    return Surrogate(value, side(high, low), value, None)


CHOICES = {
    "prime-rl/ipo": Choice(ipo, {"ipo_threshold": 0.3}),
    "prime-rl/icepop": Choice(icepop, {"is_low": 0.2, "is_high": 5.0}),
    "prime-rl/ref_kl": Choice(
        ref_kl,
        {"divergence_low": 0.2},
        stops_gradient="the distance to the teacher is a constant weight",
    ),
}
