"""The capped weight of CISPO taken wrongly: its cap, its stop-gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Surrogate, side


def weights(case: Case) -> Iterator[Cause]:
    """Other caps, and the gradient through the weight."""
    own = case.objective.surrogate
    if not _caps(own):
        return
    epsilon = float(own.values["epsilon_high"] or 0.0)
    name, other = _other_cap(own)
    yield _capped("bound missing: the weight is not clipped", lambda _: np.inf)
    yield _capped(f"bound at {name} = {other(epsilon):g}", other)
    yield Cause(
        "surrogate",
        "stop-gradient of the weight missing: a gradient flows through the ratio too",
        partial(_with, cap=_own_cap(own), moving=True),
    )
    yield Cause("surrogate", "ratio for the weight times the log-prob (ρ·A)", _plain)


def _caps(own: Bound) -> bool:
    return own.name.endswith("cispo") and "epsilon_high" in own.values


def _own_cap(own: Bound) -> Callable[[float], float]:
    return (lambda e: e) if own.name == "trl/cispo" else (lambda e: 1.0 + e)


def _other_cap(own: Bound) -> tuple[str, Callable[[float], float]]:
    """TRL caps at ε_high itself, the paper at 1 + ε_high."""
    if own.name == "trl/cispo":
        return "1 + ε_high", lambda e: 1.0 + e
    return "ε_high", lambda e: e


def _capped(words: str, cap: Callable[[float], float]) -> Cause:
    return Cause("surrogate", words, partial(_with, cap=cap))


def _with(case: Case, cap: Callable[[float], float], *, moving: bool = False) -> Breakdown:
    own = case.objective.surrogate
    top = cap(float(own.values["epsilon_high"] or 0.0))

    def surrogate(ratio: F64, advantage: F64, log_probs_new: F64) -> Surrogate:
        weight = np.minimum(ratio, top) * advantage
        through = np.where(ratio <= top, weight * log_probs_new, 0.0) if moving else None
        high = (ratio > top) & (advantage != 0)
        sides = side(high, np.zeros_like(high))
        return Surrogate(weight * log_probs_new, sides, through, weight)

    return case.evaluated(surrogate=Bound("cispo", Choice(surrogate), {}))


def _plain(case: Case) -> Breakdown:
    def surrogate(ratio: F64, advantage: F64) -> Surrogate:
        value = ratio * advantage
        return Surrogate(value, np.zeros(len(value), np.int8), value, None)

    return case.evaluated(surrogate=Bound("unclipped", Choice(surrogate), {}))


def solved(case: Case) -> Iterator[Cause]:
    """The cap that the gradients of capped tokens have."""
    own, wanted = case.objective.surrogate, case.expected_policy_gradient
    if not _caps(own) or wanted is None:
        return
    slope = _with(case, lambda _: np.inf).gradient - case.without_policy.gradient
    loud = np.abs(slope) > case.quiet
    share = wanted[loud] / slope[loud] * case.breakdown.ratio[loud]
    short = share < case.breakdown.ratio[loud] * 0.999
    if short.any():
        top = float(np.median(share[short]))
        meant = _own_cap(own)(float(own.values["epsilon_high"] or 0.0))
        words = f"epsilon_high: the ratio is capped at {top:.6g} where {meant:g} is meant"
        yield _capped(words, lambda _: top)
