"""AReaL's corrections: rejection by sequence or by a metric, and by the second moment (M2PO)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Usual, choice
from grpo_cli.objective.correction import binary_kl, by_mean, greatest, importance, masked, within
from grpo_cli.objective.results import Correction

sequence_mask = importance(
    by_mean(masked),
    """The response's weight (Πₜ ρₜ)^(1/|o|) if it is between the bounds, else 0.

    ρₜ = π_old/π_rollout; denominators count every token.

    References:
        AReaL (rejection_sampling, level sequence, action mask). OpenRLHF and NeMo-RL weight kept
        tokens by their own ρₜ (``geometric-mask``).
""",
)
choice("correction", "areal/sequence-mask", is_low=None, is_high=5.0)(sequence_mask)


@choice("correction", "areal/m2po", m2_threshold=0.04)
def m2po(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    m2_threshold: float,
) -> Correction:
    """Drops tokens until the mean of (log π_old − log π_rollout)² is below a threshold.

    The tokens with the largest squares are dropped first; one token always remains. This is done
    for each record, which is treated as AReaL's micro-batch. Dropped tokens do not count in the
    denominator.

    Args:
        m2_threshold: nats².

    References:
        Zheng et al., M2PO, 2025 (arXiv 2510.01161), which uses the second moment of log π_θ − log
        π_rollout.
    """
    kept = _moment(log_probs_old - log_probs_rollout, responses, records, m2_threshold)
    return Correction(kept.astype(np.float64), kept=kept, unmasked=kept)


def _moment(
    difference: F64, responses: Segments, records: Segments, threshold: float
) -> NDArray[np.bool_]:
    """[N] which tokens stay, record by record."""
    ends = np.cumsum(records.sum(responses.lengths))
    parts = np.split(np.square(difference), ends[:-1])
    return np.concatenate([_of_low_mean(part, threshold) for part in parts])


def _of_low_mean(squares: F64, threshold: float) -> NDArray[np.bool_]:
    """Which of the squares stay when the greatest are dropped until the mean is below."""
    order = np.argsort(squares, kind="stable")
    means = np.cumsum(squares[order]) / np.arange(1, len(squares) + 1)
    staying = max(int(np.count_nonzero(means < threshold)), 1)
    kept = np.zeros(len(squares), np.bool_)
    kept[order[:staying]] = True
    return kept


_AGGREGATES: Mapping[str, Callable[[F64, Segments], F64]] = {
    "mean": lambda metric, responses: responses.mean(metric),
    "sum": lambda metric, responses: responses.sum(metric),
    "max": greatest,
}
"""By response, [R]; 0 for one without tokens."""

_EDGE = 1e-8  # probabilities are held this far from 0 and 1 in the binary KL


_REJECTION: Usual = {
    "rejection_metric": "ratio",
    "rejection_level": "token",
    "rejection_agg": "mean",
    "rejection_action": "mask",
    "is_low": None,
    "is_high": 5.0,
    "m2_threshold": None,
}


@choice("correction", "areal/rejection", **_REJECTION)
def rejection(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    rejection_metric: str,
    rejection_level: str,
    rejection_agg: str,
    rejection_action: str,
    is_low: float | None,
    is_high: float,
    m2_threshold: float | None,
) -> Correction:
    """AReaL's ``rejection_sampling``: c is the weight where the metric is within bounds, else 0.

    With d = log π_old − log π_rollout of a token, the metric is e^d (ratio), d (kl_k1), d²/2
    (kl_k2), e^(−d) − 1 + d (kl_k3), or KPop's binary_kl. binary_kl is the larger of KL(π_old ‖
    π_rollout) and its reverse, for the two outcomes 'this token' and 'any other'. At level
    sequence the metric is the sum, mean or maximum over the response (for the ratio: of d, then
    exponentiated). The weight is e^d, or e^mean(d) for the ratio at level sequence. Action clamp
    clamps the weight to the bounds and drops nothing; at level sequence it clamps only responses
    outside the bounds. A sequence ratio is over the tokens that are left; denominators count every
    token. With m2_threshold, ``areal/m2po`` drops tokens first: they count nowhere.

    Args:
        log_probs_old: [N] the proximal policy's, nats.
        log_probs_rollout: [N] the behaviour policy's, nats.
        rejection_metric, rejection_level, rejection_agg, rejection_action: AReaL's metric, level,
            agg and action. AReaL's configuration refuses clamp for other metrics than the ratio.
        is_low, is_high: AReaL's lower and upper; lower None: no lower bound.
        m2_threshold: AReaL's m2_threshold; None: M2PO drops nothing.

    References:
        AReaL cbff54d, ``apply_rejection_sampling``, behind ``_apply_m2po_masking``.
    """
    difference = log_probs_old - log_probs_rollout
    counted = np.ones(len(difference), np.bool_)
    if m2_threshold is not None:
        counted = _moment(difference, responses, records, m2_threshold)
    of_ratio = rejection_metric == "ratio"
    weight = np.exp(difference)
    metric = _metric(log_probs_old, log_probs_rollout, rejection_metric)
    if rejection_level == "sequence":
        own = Segments(responses.sum(counted.astype(np.int64)))
        if of_ratio:
            weight = responses.spread(np.exp(own.mean(difference[counted])))
        metric = responses.spread(_AGGREGATES[rejection_agg](metric[counted], own))
    inside = within(np.exp(metric) if of_ratio else metric, is_low, is_high)
    left = counted & inside
    if rejection_action == "clamp":
        left = counted
        clamped = np.clip(weight, 0.0 if is_low is None else is_low, is_high)
        weight = clamped if rejection_level == "token" else np.where(inside, weight, clamped)
    kept = None if m2_threshold is None else counted
    return Correction(np.where(left, weight, 0.0), kept=kept, unmasked=left)


def _metric(log_probs_old: F64, log_probs_rollout: F64, name: str) -> F64:
    """[N]; d itself for the ratio, which is exponentiated after it is aggregated."""
    difference = log_probs_old - log_probs_rollout
    if name == "kl_k2":
        return 0.5 * difference**2
    if name == "kl_k3":
        return np.exp(-difference) - 1.0 + difference
    if name != "binary_kl":
        return difference
    old, engine = (
        np.clip(np.exp(logs), _EDGE, 1.0 - _EDGE) for logs in (log_probs_old, log_probs_rollout)
    )
    return np.maximum(binary_kl(old, engine), binary_kl(engine, old))
