"""AReaL's sequence ratio, which is taken over the tokens that its rejection kept."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Ratio


def sequence_kept(
    token_log_ratio: F64,
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Ratio:
    """``sequence`` over the tokens with is_low ≤ π_old/π_rollout ≤ is_high alone.

    A dropped token has the response's ratio too, and no part in it or in its gradient;
    ``token-mask`` with the same bounds gives it weight 0.

    Args:
        token_log_ratio: [N] log π_θ − log π_old, nats.
        log_probs_old, log_probs_rollout: [N] nats.
        responses: cuts the tokens into responses.
        is_low, is_high: the bounds; None: none.
    """
    weight = np.exp(log_probs_old - log_probs_rollout)
    low, high = 0.0 if is_low is None else is_low, np.inf if is_high is None else is_high
    kept = (weight >= low) & (weight <= high)
    counts = np.maximum(responses.sum(kept.astype(np.int64)), 1)
    log_ratio = responses.spread(responses.sum(np.where(kept, token_log_ratio, 0.0)) / counts)

    def pull(slope: F64) -> F64:
        return np.where(kept, responses.spread(responses.sum(slope) / counts), 0.0)

    return Ratio(log_ratio, np.exp(log_ratio), pull)


CHOICES = {"areal/sequence": Choice(sequence_kept, {"is_low": None, "is_high": 5.0})}
