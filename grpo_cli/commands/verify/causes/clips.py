"""Clips written wrongly, as surrogates with the same two bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Surrogate, side, unbound

Form = Callable[[F64, F64, float, float], tuple[F64, F64 | None]]
"""ρ, A and both bounds → s and ∂s/∂log ρ (None where it is 0)."""


def right(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    """min(ρ·A, clip(ρ)·A)."""
    free, bounded = ratio * a, np.clip(ratio, low, high) * a
    return np.minimum(free, bounded), np.where(free <= bounded, free, 0.0)


def _greatest(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    free, bounded = ratio * a, np.clip(ratio, low, high) * a
    return np.maximum(free, bounded), np.where(free >= bounded, free, 0.0)


def _only_bounded(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    bounded = np.clip(ratio, low, high)
    return bounded * a, np.where(bounded == ratio, ratio * a, 0.0)


def _through(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    return right(ratio, a, low, high)[0], ratio * a


def _left_out(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    slope = right(ratio, a, low, high)[1]
    return slope, slope


def _constant(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, None]:
    return right(ratio, a, low, high)[0], None


def _first_order(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    linear = 1.0 + np.log(ratio)
    value, _ = right(linear, a, low, high)
    return value, np.where(value == linear * a, a, 0.0)


def _logarithm(ratio: F64, a: F64, low: float, high: float) -> tuple[F64, F64]:
    logarithm = np.log(ratio)
    value, _ = right(logarithm, a, low, high)
    return value, np.where(value == logarithm * a, a, 0.0)


Bounds = Callable[[float, float], tuple[float, float]]
"""ε_low and ε_high → both bounds."""


def own(low: float, high: float) -> tuple[float, float]:
    """1 − ε_low and 1 + ε_high."""
    return 1.0 - low, 1.0 + high


CLIPS: tuple[tuple[str, Form, Bounds], ...] = (
    ("clip missing (unclipped)", right, lambda _, __: (-np.inf, np.inf)),
    ("max for min of the clipped and the unclipped product", _greatest, own),
    ("no min: only the clipped product counts, on both sides of A", _only_bounded, own),
    ("lower clip missing", right, lambda _, high: (-np.inf, 1.0 + high)),
    ("upper clip missing", right, lambda low, _: (1.0 - low, np.inf)),
    (
        "epsilon_low and epsilon_high swapped",
        right,
        lambda low, high: (1.0 - high, 1.0 + low),
    ),
    ("epsilon_low used on both sides", right, lambda low, _: (1.0 - low, 1.0 + low)),
    ("epsilon_high used on both sides", right, lambda _, high: (1.0 - high, 1.0 + high)),
    (
        "lower bound 1/(1 + ε_high) where 1 − ε_low is meant",
        right,
        lambda _, high: (1.0 / (1.0 + high), 1.0 + high),
    ),
    (
        "upper bound 1/(1 − ε_low) where 1 + ε_high is meant",
        right,
        lambda low, _: (1.0 - low, 1.0 / (1.0 - low) if low < 1.0 else np.inf),
    ),
    (
        "clip in log space: the log-ratio is clipped to −ε_low and ε_high",
        right,
        lambda low, high: (float(np.exp(-low)), float(np.exp(high))),
    ),
    (
        "clip straight-through: the value is clipped, the gradient of clipped tokens is not",
        _through,
        own,
    ),
    ("clipped tokens left out: they add nothing to the value", _left_out, own),
    ("ratio detached (stop-gradient): the policy term has no gradient", _constant, own),
    ("1 + log ratio for the ratio: no exp", _first_order, own),
    ("log ratio for the ratio: no exp", _logarithm, own),
)


def clips(case: Case) -> Iterator[Cause]:
    """Every wrong clip, of a surrogate that clips as PPO does."""
    surrogate = case.objective.surrogate
    if surrogate.choice.window != "product":
        return
    if all(surrogate.values.get(name) is None for name in ("delta", "dual_clip")):
        for words, form, bounds in CLIPS:
            yield Cause("surrogate", words, partial(bounded, form=form, bounds=bounds))
    for name, value, words in _CAPS:
        if name in surrogate.values and surrogate.values[name] != value:
            yield Cause("surrogate", words, partial(_capped, name=name, value=value))


def bounded(case: Case, form: Form, bounds: Bounds) -> Breakdown:
    """The record with a clip of our own."""
    values = case.objective.surrogate.values
    low, high = bounds(float(values["epsilon_low"] or 0.0), float(values["epsilon_high"] or 0.0))

    def clip(ratio: F64, advantage: F64) -> Surrogate:
        value, slope = form(ratio, advantage, low, high)
        sides = side(ratio > high, ratio < low)
        return Surrogate(value, sides, slope, None)

    return case.evaluated(surrogate=Bound("clip", Choice(clip), {}))


_CAPS: tuple[tuple[str, float | None, str], ...] = (
    ("dual_clip", 3.0, "dual clip 3 added"),
    ("dual_clip", None, "dual clip missing"),
    ("delta", None, "delta missing"),
)


def _capped(case: Case, name: str, value: float | None) -> Breakdown:
    surrogate = case.objective.surrogate
    changed = {**surrogate.values, name: value}
    return case.evaluated(surrogate=Bound(surrogate.name, surrogate.choice, changed))


def reinforce(case: Case) -> Iterator[Cause]:
    """The log-prob in the place of the ratio."""
    if case.batch.log_probs_new is not None:
        words = "log-prob for the ratio (reinforce): A·log π_θ"
        yield Cause("surrogate", words, _log_prob)


def _log_prob(case: Case) -> Breakdown:
    def surrogate(log_probs_new: F64, advantage: F64) -> Surrogate:
        value = log_probs_new * advantage
        return Surrogate(value, unbound(len(value)), None, advantage)

    return case.evaluated(surrogate=Bound("reinforce", Choice(surrogate), {}))
