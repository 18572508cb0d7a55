"""AReaL's rejection by sequence, and its second-moment mask (M2PO)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.correction.rollout import token_mask
from grpo_cli.objective.results import Correction


def sequence_mask(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Correction:
    """The weight (Πₜ ρₜ)^(1/|o|) where that is between the bounds, else 0, for a whole response.

    ρₜ = π_old/π_rollout; denominators keep every token.

    References:
        AReaL (rejection_sampling, level sequence, action mask). OpenRLHF and NeMo-RL weigh what
        they keep with ρₜ itself (``geometric-mask``).
    """
    mean = np.exp(responses.mean(log_probs_old - log_probs_rollout))
    low, high = 0.0 if is_low is None else is_low, np.inf if is_high is None else is_high
    return Correction(responses.spread(np.where((mean >= low) & (mean <= high), mean, 0.0)))


def m2po(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    m2_threshold: float,
) -> Correction:
    """Keeps the tokens whose mean (log π_old − log π_rollout)² is below a threshold: c is 1 or 0.

    Per record, which stands for AReaL's micro-batch, the tokens of the greatest squares are dropped
    until the mean of the rest is below the threshold; one token always stays. The dropped leave the
    denominator too.

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        responses, records: cut the tokens into responses, and the responses into records.
        m2_threshold: nats².

    References:
        Zheng et al., M2PO, 2025 (arXiv 2510.01161), whose second moment is of π_θ against
        π_rollout.
    """
    kept = _moment(log_probs_old - log_probs_rollout, responses, records, m2_threshold)
    return Correction(kept.astype(np.float64), kept=kept)


def m2po_token_mask(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
    m2_threshold: float,
) -> Correction:
    """``token-mask`` on the tokens that ``areal/m2po`` keeps.

    What ``token-mask`` drops of them stays in the denominator.
    """
    kept = _moment(log_probs_old - log_probs_rollout, responses, records, m2_threshold)
    bounded = token_mask(log_probs_old, log_probs_rollout, is_low=is_low, is_high=is_high)
    return Correction(np.where(kept, bounded.weight, 0.0), kept=kept)


def _moment(
    difference: F64, responses: Segments, records: Segments, threshold: float
) -> NDArray[np.bool_]:
    """[N] which tokens stay, record by record."""
    ends = np.cumsum(records.sum(responses.lengths))
    parts = np.split(np.square(difference), ends[:-1])
    return np.concatenate([_within(part, threshold) for part in parts])


def _within(squares: F64, threshold: float) -> NDArray[np.bool_]:
    """Which of the squares stay when the greatest are dropped until the mean is below."""
    order = np.argsort(squares, kind="stable")
    means = np.cumsum(squares[order]) / np.arange(1, len(squares) + 1)
    staying = max(int(np.count_nonzero(means < threshold)), 1)
    kept = np.zeros(len(squares), np.bool_)
    kept[order[:staying]] = True
    return kept


CHOICES = {
    "areal/sequence-mask": Choice(sequence_mask, {"is_low": None, "is_high": 5.0}),
    "areal/m2po": Choice(m2po, {"m2_threshold": 0.04}),
    "areal/m2po-token-mask": Choice(
        m2po_token_mask, {"is_low": None, "is_high": 5.0, "m2_threshold": 0.04}
    ),
}
