"""The quantities that a record may expect, by name, and what trainers log with the loss.

Every function takes the breakdown of one or more records and gives a number per token [N] or per
record [M]; None where the objective has no such quantity, NaN for a record that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY

Values = Callable[[Breakdown], F64 | None]
Reduction = Callable[[NDArray[Any]], Any]


def _by_record(values: NDArray[Any], counts: I64, reduce: Reduction, empty: float = np.nan) -> F64:
    """[M] reduces the values of each record, of which ``counts`` has the number."""
    ends = np.cumsum(counts)
    parts = np.split(values, ends[:-1])
    return np.array([float(reduce(part)) if len(part) else empty for part in parts])


def _of_tokens(
    values: Callable[[Breakdown], NDArray[Any] | None], reduce: Reduction, empty: float = np.nan
) -> Values:
    """Returns the function that reduces numbers per token to one per record."""

    def reduced(breakdown: Breakdown) -> F64 | None:
        tokens = values(breakdown)
        if tokens is None:
            return None
        return _by_record(tokens, breakdown.record_tokens, reduce, empty)

    return reduced


# ---- what TRL logs ------------------------------------------------------------------------------


def _per_response(breakdown: Breakdown) -> bool:
    return breakdown.objective.ratio.choice.per_response


def _bound(breakdown: Breakdown, side: int) -> F64:
    """[N] 1 where TRL counts a token as clipped.

    Its δ, which binds where A < 0, is no clip, and one within the window hides what that clips.
    """
    bound = (breakdown.clip == side) & (np.sign(breakdown.advantage) == side)
    values = breakdown.objective.surrogate.values
    delta, width = values.get("delta"), values.get("epsilon_high")
    if side > 0 and isinstance(delta, float) and isinstance(width, float) and delta <= 1.0 + width:
        bound = np.zeros_like(bound)
    return bound.astype(np.float64)


def _shares(breakdown: Breakdown, side: int) -> F64:
    """[N], or [R] where each response has one ratio: what TRL takes the mean of.

    It is 1 where TRL counts the token as clipped; responses without tokens have the ratio 1.
    """
    bound = _bound(breakdown, side)
    return breakdown.batch.responses.mean(bound) if _per_response(breakdown) else bound


def _mean_share(breakdown: Breakdown, shares: F64) -> F64:
    counts = breakdown.record_tokens
    if _per_response(breakdown):
        counts = breakdown.batch.records.lengths
    return np.where(breakdown.record_tokens > 0, _by_record(shares, counts, np.mean), np.nan)


def _clipped(*sides: int) -> Values:
    return lambda breakdown: _mean_share(
        breakdown, np.sum([_shares(breakdown, side) for side in sides], axis=0)
    )


def _extreme(side: int, reduce: Reduction) -> Values:
    """Returns the function for the least or greatest clip fraction of a record's responses."""

    def extreme(breakdown: Breakdown) -> F64:
        batch = breakdown.batch
        share = batch.responses.mean(_bound(breakdown, side))
        counted = batch.responses.lengths > 0
        if _per_response(breakdown):  # those without tokens too, if the record has any
            counted = np.repeat(breakdown.record_tokens > 0, batch.records.lengths)
        counts = batch.records.sum(counted.astype(np.int64))
        return _by_record(share[counted], counts, reduce)

    return extreme


def _capped(breakdown: Breakdown) -> F64 | None:
    """[M] TRL's share of tokens, or responses, that CISPO caps at A > 0."""
    surrogate = breakdown.objective.surrogate
    if surrogate.name != "trl/cispo":
        return None
    shares = _shares(breakdown, 1)
    if _per_response(breakdown) and float(surrogate.values["epsilon_high"] or 0.0) < 1.0:
        given = breakdown.response_advantage
        empty = breakdown.batch.responses.lengths == 0
        shares = np.where(empty & (given is not None and given > 0), 1.0, shares)
    return _mean_share(breakdown, shares)


# ---- what verl logs -----------------------------------------------------------------------------


def _ppo_kl(breakdown: Breakdown) -> F64 | None:
    """[M] the mean of log π_old − log π_θ over the kept tokens, bounded where the ratio is."""
    batch, objective = breakdown.batch, breakdown.objective
    to_engine = objective.ratio.name == "rollout"
    old = batch.log_probs_rollout if to_engine else batch.log_probs_old
    if old is None or batch.log_probs_new is None:
        return None
    moved, counts = old - batch.log_probs_new, breakdown.record_tokens
    if breakdown.kept is not None:
        moved = moved[breakdown.kept]
        counts = batch.records.sum(batch.responses.sum(breakdown.kept.astype(np.int64)))
    bound = objective.ratio.values.get("log_ratio_clamp")
    if bound is not None:
        moved = np.clip(moved, -float(bound), float(bound))
    if "ppo_kl_coef" in objective.surrogate.values:  # kl_cov logs what it penalises
        moved = np.abs(moved)
    return _by_record(moved, counts, np.mean)


# ---- tables -------------------------------------------------------------------------------------

METRICS: Mapping[str, Values] = {
    "clip_fraction": _of_tokens(lambda b: b.clip != 0, np.mean),
    "clip_fraction_low": _of_tokens(lambda b: b.clip < 0, np.mean),
    "clip_fraction_high": _of_tokens(lambda b: b.clip > 0, np.mean),
    "ratio_mean": _of_tokens(lambda b: b.ratio, np.mean),
    "ratio_min": _of_tokens(lambda b: b.ratio, np.min),
    "ratio_max": _of_tokens(lambda b: b.ratio, np.max),
    "gradient_norm": _of_tokens(lambda b: b.gradient, np.linalg.norm, empty=0.0),
    "clip_ratio/low_mean": _clipped(-1),
    "clip_ratio/low_min": _extreme(-1, np.min),
    "clip_ratio/high_mean": _clipped(1),
    "clip_ratio/high_max": _extreme(1, np.max),
    "clip_ratio/region_mean": _clipped(-1, 1),
    "cispo_clip_ratio": _capped,
    "kl": _of_tokens(lambda b: b.kl, np.mean),  # weighted by the ratio where the loss's is
    "actor/ppo_kl": _ppo_kl,
}
"""TRL's and verl's names, and grpo's own → [M]."""


@dataclass(frozen=True)
class Quantity:
    """A number, or one per token, that a record may expect.

    Attributes:
        keys: what ``expected`` may call it.
        stage: the stage that makes it.
        tokens: its values per token [N]; None where it has none.
        record: its values per record [M]; None where it has none.
    """

    keys: tuple[str, ...]
    stage: str
    tokens: Values | None = None
    record: Values | None = None


def _metric(name: str, stage: str) -> Quantity:
    return Quantity((name,), stage, record=METRICS[name])


QUANTITIES = (
    Quantity(("advantages", "advantage"), "advantage", lambda b: b.advantage),
    Quantity(("log_ratio", "log_ratios"), "ratio", lambda b: b.log_ratio),
    Quantity(("ratio", "ratios"), "ratio", lambda b: b.ratio, METRICS["ratio_mean"]),
    Quantity(("surrogate",), "surrogate", lambda b: b.surrogate),
    Quantity(("kl",), "kl", lambda b: b.kl, lambda b: b.record_value(KL)),
    Quantity(("weight", "weights"), "aggregate", lambda b: b.token_weight),
    Quantity(("contribution", "contributions"), "aggregate", lambda b: b.contribution),
    Quantity(("gradient",), "gradient", lambda b: b.gradient),
    Quantity(("loss_gradient",), "gradient", lambda b: -b.gradient),
    _metric("clip_fraction", "surrogate"),
    _metric("clip_fraction_low", "surrogate"),
    _metric("clip_fraction_high", "surrogate"),
    _metric("ratio_mean", "ratio"),
    _metric("ratio_min", "ratio"),
    _metric("ratio_max", "ratio"),
    _metric("gradient_norm", "gradient"),
    Quantity(("policy",), "policy", record=lambda b: b.record_value(POLICY)),
    Quantity(("policy_loss",), "policy", record=lambda b: -b.record_value(POLICY)),
    Quantity(("kl_loss",), "kl", record=lambda b: b.record_value(KL)),
    Quantity(("objective",), "objective", record=lambda b: b.record_objective),
    Quantity(("loss",), "loss", record=lambda b: -b.record_objective),
)
"""In the order of the stages."""

LOSSES = ("loss", "policy_loss")
"""What ``expected`` calls the loss of a record, which adds up to that of its step."""

OF_STEP = ("step_loss", "step_metrics")
"""What ``expected`` may have of the step of its record; a bundle's replay compares it."""

KEYS = (*(key for quantity in QUANTITIES for key in quantity.keys), "metrics", *OF_STEP)
"""What ``expected`` may have."""
