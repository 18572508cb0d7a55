"""Clips that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trials.simulate.policy import F64
from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import bounds, log_ratio
from trials.trl.tape import Var
from trials.wrong.mistake import Mistake, clipped, token_level


def policy_term(name: str, right: str, made: Callable[..., Var], needs: Any = clipped) -> Mistake:
    return Mistake(name, right, {"policy": made}, needs=needs)


def _bounded(low: Callable[[float], float], high: Callable[[float], float]) -> Any:
    """p with other bounds, as functions of the right ones."""

    def policy(data: Data, new: Var, ratio: Var, a: F64) -> Var:
        below, above = bounds(data)
        tamed = tape.clamp(ratio, low(below), high(above))
        return -tape.least(ratio * a, tamed * a)

    return policy


def _both_sides(factor: float) -> Callable[[Data], bool]:
    """Whether two tokens on either side tell ``factor`` times the ε from the right one."""

    def needs(data: Data) -> bool:
        low, high = sorted((1.0, factor))
        ratio, a = np.exp(data.new - data.old), data.advantages[data.index]
        under = (1.0 - ratio[a < 0]) / data.hyper["epsilon_low"]
        over = (ratio[a > 0] - 1.0) / data.hyper["epsilon_high"]
        counts = [int(((off > low) & (off < high)).sum()) for off in (under, over)]
        return token_level(data) and min(counts) >= 2

    return needs


def _swapped(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    low, high = bounds(data)
    return -tape.least(ratio * a, tape.clamp(ratio, 2.0 - high, 2.0 - low) * a)


def _low_on_both(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    low, _ = bounds(data)
    return -tape.least(ratio * a, tape.clamp(ratio, low, 2.0 - low) * a)


def _reciprocal(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    _, high = bounds(data)
    return -tape.least(ratio * a, tape.clamp(ratio, 1.0 / high, high) * a)


def _log_space(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    low, high = bounds(data)
    change = log_ratio(data, new)
    return -tape.least(ratio * a, tape.exp(tape.clamp(change, low - 1.0, high - 1.0)) * a)


def _greatest(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -tape.most(ratio * a, tape.clamp(ratio, *bounds(data)) * a)


def _only_clipped(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(tape.clamp(ratio, *bounds(data)) * a)


def _unclipped(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(ratio * a)


def _through(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -tape.least(ratio * a, tape.through(ratio, *bounds(data)) * a)


_EPSILON = r"ε|\beps(ilon)?(_high|_low)?\b"

CLIPS = (
    policy_term("max for min", r"\bmax(imum)?\b", _greatest),
    policy_term(
        "no min",
        r"no min|min(imum)? (is )?missing|without (the )?min|only the clipped",
        _only_clipped,
    ),
    policy_term(
        "no clip", r"clip missing|unclipped|no clip|without (a |the )?clip|not clipped", _unclipped
    ),
    policy_term(
        "no lower clip",
        r"lower clip missing|epsilon_low (= |of )?1\b|no lower|only above",
        _bounded(lambda low: 0.0, lambda high: high),
    ),
    policy_term(
        "no upper clip",
        r"upper clip missing|no upper|only below|clip-?higher",
        _bounded(lambda low: low, lambda high: 1e6),
    ),
    policy_term(
        "epsilon_low and epsilon_high swapped",
        r"swapped|exchanged",
        _swapped,
        lambda d: clipped(d) and d.hyper["epsilon_low"] != d.hyper["epsilon_high"],
    ),
    policy_term(
        "epsilon_low on both sides",
        rf"epsilon_low (used )?on both|{_EPSILON}.*(both|is|of|=|0\.)",
        _low_on_both,
        lambda d: clipped(d) and d.hyper["epsilon_low"] != d.hyper["epsilon_high"],
    ),
    policy_term(
        "half the epsilon",
        rf"{_EPSILON}.*(\d|half)",
        _bounded(lambda low: 1 - (1 - low) / 2, lambda high: 1 + (high - 1) / 2),
        _both_sides(0.5),
    ),
    policy_term(
        "twice the epsilon",
        rf"{_EPSILON}.*(\d|twice|double)",
        _bounded(lambda low: 1 - (1 - low) * 2, lambda high: 1 + (high - 1) * 2),
        _both_sides(2.0),
    ),
    policy_term("lower bound 1/(1 + ε)", r"1 ?/ ?\(1 ?\+|reciprocal", _reciprocal),
    policy_term(
        "clip in log space",
        r"log.?space|log.?ratio.*(clip|clamp)|(clip|clamp).*log.?ratio|e\^",
        _log_space,
    ),
    policy_term(
        "clip straight-through", r"straight.?through|clip.*gradient|gradient.*clip", _through
    ),
)
