"""What trainers log beside their loss, from a breakdown of one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown


def _mean(breakdown: Breakdown, values: NDArray[np.float64]) -> float | None:
    """Over tokens; over responses where they have one ratio each, as trainers do."""
    if not values.size:
        return None
    if breakdown.objective.ratio.choice.per_response:
        filled = breakdown.batch.responses.lengths > 0
        return float(breakdown.batch.responses.mean(values)[filled].mean())
    return float(values.mean())


def _clipped(side: int) -> Callable[[Breakdown], float | None]:
    return lambda breakdown: _mean(breakdown, _bound(breakdown, side))


def _bound(breakdown: Breakdown, side: int) -> F64:
    """[N] 1 where TRL counts a token as clipped: its δ, which binds where A < 0, is none."""
    bound = (breakdown.clip == side) & (np.sign(breakdown.advantage) == side)
    return bound.astype(np.float64)


def _region(breakdown: Breakdown) -> float | None:
    return _mean(breakdown, _bound(breakdown, -1) + _bound(breakdown, 1))


def _extreme(side: int, which: Callable[[F64], float]) -> Callable[[Breakdown], float | None]:
    """The least or greatest clip fraction of a response."""

    def extreme(breakdown: Breakdown) -> float | None:
        responses = breakdown.batch.responses
        share = responses.mean(_bound(breakdown, side))
        share = share[responses.lengths > 0]
        return float(which(share)) if share.size else None

    return extreme


def _token_kl(breakdown: Breakdown) -> float | None:
    """The mean over tokens, weighted by the ratio where the loss weighs it so."""
    return float(breakdown.kl.mean()) if breakdown.kl is not None and breakdown.kl.size else None


def _ppo_kl(breakdown: Breakdown) -> float | None:
    batch = breakdown.batch
    if batch.log_probs_old is None or batch.log_probs_new is None or not batch.responses.total:
        return None
    moved = np.clip(batch.log_probs_old - batch.log_probs_new, -20.0, 20.0)
    if "ppo_kl_coef" in breakdown.objective.surrogate.values:  # kl_cov logs what it penalises
        moved = np.abs(moved)
    return float(moved.mean())


def _ratio(reduce: Callable[[F64], float]) -> Callable[[Breakdown], float | None]:
    return lambda breakdown: float(reduce(breakdown.ratio)) if breakdown.ratio.size else None


METRICS: Mapping[str, Callable[[Breakdown], float | None]] = {
    "clip_fraction": lambda b: float((b.clip != 0).mean()) if b.clip.size else None,
    "clip_fraction_low": lambda b: float((b.clip < 0).mean()) if b.clip.size else None,
    "clip_fraction_high": lambda b: float((b.clip > 0).mean()) if b.clip.size else None,
    "ratio_mean": _ratio(np.mean),
    "ratio_min": _ratio(np.min),
    "ratio_max": _ratio(np.max),
    "gradient_norm": lambda b: float(np.linalg.norm(b.gradient)),
    "clip_ratio/low_mean": _clipped(-1),
    "clip_ratio/low_min": _extreme(-1, np.min),
    "clip_ratio/high_mean": _clipped(1),
    "clip_ratio/high_max": _extreme(1, np.max),
    "clip_ratio/region_mean": _region,
    "kl": _token_kl,
    "actor/ppo_kl": _ppo_kl,
}
"""TRL's and verl's names, and our own; each of a record of its own."""
