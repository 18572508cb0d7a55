"""Responses that the dual clip bound more than once, taken out whole."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction


def dual_clip_drop(
    ratio: F64, advantage: F64, responses: Segments, *, delta: float | None
) -> Correction | None:
    """Removes a response in which more than one token has A < 0 and ρ > δ.

    Here ρ is the ratio of the ratio stage, π_θ against π_old, and δ is delta. It leaves the policy
    term and the denominators that count tokens.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        responses: cuts the tokens into responses.
        delta: the bound on the ratio where A < 0; None: nothing is removed.

    References:
        Ma et al., FIPO, 2026 (arXiv 2603.19835), in their code alone.
    """
    if delta is None:
        return None
    bound = responses.sum(((advantage < 0) & (ratio > delta)).astype(np.int64))
    kept = np.repeat(bound <= 1, responses.lengths)
    weight = kept.astype(np.float64)
    return Correction(weight, weight, kept)


CHOICES = {"dual-clip-drop": Choice(dual_clip_drop, {"delta": 10.0})}
