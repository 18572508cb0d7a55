"""The quantities that a record may expect, by name, and what trainers log beside the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY


def _shares(breakdown: Breakdown, side: int) -> F64 | None:
    """What TRL takes the mean of: 1 where it counts a token as clipped, or a response.

    One of each token, or of each response where that has one ratio; a response without tokens has
    the ratio 1 there.
    """
    batch = breakdown.batch
    if not batch.responses.total:
        return None
    bound = _bound(breakdown, side)
    if not breakdown.objective.ratio.choice.per_response:
        return bound
    return np.where(batch.responses.lengths > 0, batch.responses.mean(bound), 0.0)


def _clipped(side: int) -> Callable[[Breakdown], float | None]:
    def clipped(breakdown: Breakdown) -> float | None:
        shares = _shares(breakdown, side)
        return None if shares is None else float(shares.mean())

    return clipped


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


def _region(breakdown: Breakdown) -> float | None:
    low, high = _shares(breakdown, -1), _shares(breakdown, 1)
    return None if low is None or high is None else float((low + high).mean())


def _capped(breakdown: Breakdown) -> float | None:
    """TRL's share of tokens, or responses, that CISPO caps at A > 0."""
    shares, values = _shares(breakdown, 1), breakdown.objective.surrogate.values
    if breakdown.objective.surrogate.name != "trl/cispo" or shares is None:
        return None
    if breakdown.objective.ratio.choice.per_response and float(values["epsilon_high"] or 0.0) < 1.0:
        given = breakdown.response_advantage
        empty = breakdown.batch.responses.lengths == 0
        shares = np.where(empty & (given is not None and given > 0), 1.0, shares)
    return float(shares.mean())


def _extreme(side: int, which: Callable[[F64], float]) -> Callable[[Breakdown], float | None]:
    """The least or greatest clip fraction of a response."""

    def extreme(breakdown: Breakdown) -> float | None:
        responses = breakdown.batch.responses
        share = _shares(breakdown, side)
        if share is None or not breakdown.objective.ratio.choice.per_response:
            share = responses.mean(_bound(breakdown, side))[responses.lengths > 0]
        return float(which(share)) if share.size else None

    return extreme


def _token_kl(breakdown: Breakdown) -> float | None:
    """The mean over tokens, weighted by the ratio where the loss weighs it so."""
    return float(breakdown.kl.mean()) if breakdown.kl is not None and breakdown.kl.size else None


def _ppo_kl(breakdown: Breakdown) -> float | None:
    """verl's: the mean of log π_old − log π_θ over the kept tokens, bounded where the ratio is."""
    batch, objective = breakdown.batch, breakdown.objective
    to_engine = objective.ratio.name == "rollout"
    old = batch.log_probs_rollout if to_engine else batch.log_probs_old
    if old is None or batch.log_probs_new is None:
        return None
    moved = old - batch.log_probs_new
    if breakdown.kept is not None:
        moved = moved[breakdown.kept]
    if not moved.size:
        return None
    bound = objective.ratio.values.get("log_ratio_clamp")
    if bound is not None:
        moved = np.clip(moved, -float(bound), float(bound))
    if "ppo_kl_coef" in objective.surrogate.values:  # kl_cov logs what it penalises
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
    "cispo_clip_ratio": _capped,
    "kl": _token_kl,
    "actor/ppo_kl": _ppo_kl,
}
"""TRL's and verl's names, and our own; each of a record of its own."""


@dataclass(frozen=True)
class Quantity:
    """A number, or one per token, that a record may expect.

    Attributes:
        keys: what ``expected`` may call it.
        stage: the stage that makes it.
        tokens: a breakdown's value of it per token [N], or None where it has none.
        whole: its value for the whole record, or None.
    """

    keys: tuple[str, ...]
    stage: str
    tokens: Callable[[Breakdown], F64 | None]
    whole: Callable[[Breakdown], float | None]


def nothing(_: Breakdown) -> None:
    """What no breakdown has."""


def _scalar(values: F64) -> float:
    return float(values[0])


def _mean_ratio(breakdown: Breakdown) -> float | None:
    return float(breakdown.ratio.mean()) if breakdown.ratio.size else None


def _logged(name: str, stage: str) -> Quantity:
    """A metric under our own name, as ``eval`` prints it."""
    return Quantity((name,), stage, nothing, METRICS[name])


QUANTITIES = (
    Quantity(("advantages", "advantage"), "advantage", lambda b: b.advantage, nothing),
    Quantity(("log_ratio", "log_ratios"), "ratio", lambda b: b.log_ratio, nothing),
    Quantity(("ratio", "ratios"), "ratio", lambda b: b.ratio, _mean_ratio),
    Quantity(("surrogate",), "surrogate", lambda b: b.surrogate, nothing),
    Quantity(("kl",), "kl", lambda b: b.kl, lambda b: _scalar(b.record_value(KL))),
    Quantity(("weight", "weights"), "aggregate", lambda b: b.token_weight, nothing),
    Quantity(("contribution", "contributions"), "aggregate", lambda b: b.contribution, nothing),
    Quantity(("gradient",), "gradient", lambda b: b.gradient, nothing),
    Quantity(("loss_gradient",), "gradient", lambda b: -b.gradient, nothing),
    _logged("clip_fraction", "surrogate"),
    _logged("clip_fraction_low", "surrogate"),
    _logged("clip_fraction_high", "surrogate"),
    _logged("ratio_mean", "ratio"),
    _logged("ratio_min", "ratio"),
    _logged("ratio_max", "ratio"),
    _logged("gradient_norm", "gradient"),
    Quantity(("policy",), "policy", nothing, lambda b: _scalar(b.record_value(POLICY))),
    Quantity(("policy_loss",), "policy", nothing, lambda b: -_scalar(b.record_value(POLICY))),
    Quantity(("kl_loss",), "kl", nothing, lambda b: _scalar(b.record_value(KL))),
    Quantity(("objective",), "objective", nothing, lambda b: _scalar(b.record_objective)),
    Quantity(("loss",), "loss", nothing, lambda b: -_scalar(b.record_objective)),
)
"""In the order of the stages."""

KEYS = (*(key for quantity in QUANTITIES for key in quantity.keys), "metrics")
"""What ``expected`` may have."""
