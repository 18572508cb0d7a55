"""open-instruct's ρ correction: a clamp and a mask together, per token, sequence or divergence.

ρₜ = exp(dₜ), dₜ = log π_old − log π_rollout clamped to ±10. What the mask drops weighs 0; denominators
keep every token. In open-instruct a bound of 0 is off, which is null here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.correction.result import Correction

_CLAMP = 10.0


def token(
    log_probs_old: F64,
    log_probs_rollout: F64,
    *,
    is_low: float | None,
    is_high: float | None,
    rho_mask_low: float | None,
    rho_mask_high: float | None,
) -> Correction:
    """c = clip(ρₜ, is_low, is_high), 0 where ρₜ is outside [rho_mask_low, rho_mask_high].

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        is_low, is_high: bounds that ρ is clamped to; None: none.
        rho_mask_low, rho_mask_high: bounds beyond which a token is dropped; None: none.

    References:
        open-instruct: clamped at 2 from above, no mask. With a mask and no clamp it is IcePop.
    """
    rho = np.exp(_difference(log_probs_old, log_probs_rollout))
    return _weight(rho, _inside(rho, rho_mask_low, rho_mask_high), is_low, is_high)


def sequence(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
    rho_mask_low: float | None,
    rho_mask_high: float | None,
) -> Correction:
    """``open-instruct/rho`` with each response's geometric mean of ρₜ in place of ρₜ.

    References:
        open-instruct's ``rho_mask_sequence_level``, which takes a packed row for the sequence; here
        it is the response. OpenRLHF and NeMo-RL mask by the mean but weigh with ρₜ.
    """
    difference = _difference(log_probs_old, log_probs_rollout)
    rho = responses.spread(np.exp(responses.mean(difference)))
    return _weight(rho, _inside(rho, rho_mask_low, rho_mask_high), is_low, is_high)


def divergence(
    log_probs_old: F64,
    log_probs_rollout: F64,
    advantage: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
    rho_mask_low: float | None,
    rho_mask_high: float | None,
) -> Correction:
    """``open-instruct/rho`` whose mask bounds a response's mean |ρₜ − 1|, its total variation.

    Of a response outside the bounds, the tokens with A·d > 0, which widen the gap, are dropped.

    References:
        VACO, 2026 (arXiv 2603.01365); open-instruct's ``rho_mask_tv_divergence``.
    """
    difference = _difference(log_probs_old, log_probs_rollout)
    rho = np.exp(difference)
    variation = responses.spread(responses.mean(np.abs(rho - 1.0)))
    widens = np.sign(difference) * advantage > 0
    kept = _inside(variation, rho_mask_low, rho_mask_high) | ~widens
    return _weight(rho, kept, is_low, is_high)


def _difference(log_probs_old: F64, log_probs_rollout: F64) -> F64:
    return np.clip(log_probs_old - log_probs_rollout, -_CLAMP, _CLAMP)


def _inside(values: F64, low: float | None, high: float | None) -> NDArray[np.bool_]:
    return (values >= (-np.inf if low is None else low)) & (
        values <= (np.inf if high is None else high)
    )


def _weight(
    rho: F64, kept: NDArray[np.bool_], low: float | None, high: float | None
) -> Correction:
    clamped = np.clip(rho, 0.0 if low is None else low, np.inf if high is None else high)
    return Correction(np.where(kept, clamped, 0.0))


_USUAL = {"is_low": None, "is_high": 2.0, "rho_mask_low": None, "rho_mask_high": None}

CHOICES = {
    "open-instruct/rho": Choice(token, _USUAL),
    "open-instruct/rho-sequence": Choice(sequence, _USUAL),
    "open-instruct/rho-divergence": Choice(divergence, _USUAL),
}
ALIASES: dict[str, str] = {}
