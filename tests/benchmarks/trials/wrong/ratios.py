"""Ratios and clips taken wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trials.simulate.policy import F64
from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import bounds, log_ratio
from trials.trl.tape import Var
from trials.wrong.mistake import (
    Mistake,
    cispo,
    clipped,
    sequence_level,
    token_level,
    with_kl,
)


def _ratio(name: str, right: str, made: Callable[[Data, Var], Var], needs: Any) -> Mistake:
    return Mistake(name, right, {"log_ratio": made}, needs=needs)


def _policy(name: str, right: str, made: Callable[..., Var], needs: Any = clipped) -> Mistake:
    return Mistake(name, right, {"policy": made}, needs=needs)


def _sequence(data: Data, new: Var) -> Var:
    sums = tape.rows(new - data.old, data.index, data.count)
    return tape.spread(sums / data.lengths, data.index)


def _product(data: Data, new: Var) -> Var:
    return tape.spread(tape.rows(new - data.old, data.index, data.count), data.index)


def _moved(data: Data) -> bool:
    return clipped(data) and bool(np.abs(data.new - data.old).max() > 0.01)


def _bounded(low: Callable[[float], float], high: Callable[[float], float]) -> Any:
    """ℓ with other bounds, as functions of the right ones."""

    def policy(data: Data, new: Var, ratio: Var, a: F64) -> Var:
        below, above = bounds(data)
        tamed = tape.clamp(ratio, low(below), high(above))
        return -tape.least(ratio * a, tamed * a)

    return policy


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


def _detached(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    ratio = tape.stop(ratio)
    return -tape.least(ratio * a, tape.clamp(ratio, *bounds(data)) * a)


def _reinforce(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(new * a)


def _log_for_ratio(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    change = log_ratio(data, new) + 1.0
    return -tape.least(change * a, tape.clamp(change, *bounds(data)) * a)


def _cispo_grad(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(tape.clamp(ratio, 0.0, data.hyper["epsilon_high"]) * a * new)


def _cispo_plus_one(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(tape.stop(tape.clamp(ratio, 0.0, 1.0 + data.hyper["epsilon_high"])) * a * new)


def _cispo_free(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(tape.stop(ratio) * a * new)


_NO_GRADIENT = r"stop.?grad|detach|no gradient|without (a )?gradient|gradient.*(missing|0\b|zero)"
_EPSILON = r"ε|\beps(ilon)?(_high|_low)?\b"

RATIOS = (
    _ratio("ratio inverted", r"invert|π_old/π_θ|reciprocal", lambda d, t: -log_ratio(d, t), _moved),
    _ratio(
        "old taken from new, detached",
        r"old := new|ratio (is )?(taken as )?1\b|on.policy|old.*(overwritten|is new)",
        lambda d, t: t - tape.stop(t),
        _moved,
    ),
    _ratio(
        "old taken from new, with its gradient",
        rf"{_NO_GRADIENT}|old.*gradient",
        lambda d, t: t - t,
        _moved,
    ),
    _ratio(
        "ratio to the reference",
        r"(ratio|old).*ref(erence)?\b|ref(erence)?\b.*(for|as|instead of|where).*old",
        lambda d, t: t - d.ref,
        lambda d: clipped(d) and with_kl(d),
    ),
    _ratio(
        "sequence ratio for the token's",
        r"ratio sequence|sequence.*(level|ratio)|gspo|geometric",
        _sequence,
        token_level,
    ),
    _ratio(
        "token ratio for the sequence's",
        r"ratio token|token.*(level|ratio)",
        lambda d, t: t - d.old,
        sequence_level,
    ),
    _ratio(
        "product for the geometric mean",
        r"product|not divided by (the )?length|sum of (the )?log",
        _product,
        sequence_level,
    ),
    _policy("max for min", r"\bmax(imum)?\b", _greatest),
    _policy("no min", r"no min|min(imum)? (is )?missing|without (the )?min|only the clipped", _only_clipped),
    _policy("no clip", r"clip missing|unclipped|no clip|without (a |the )?clip|not clipped", _unclipped),
    _policy(
        "no lower clip",
        r"lower clip missing|epsilon_low (= |of )?1\b|no lower|only above",
        _bounded(lambda low: 0.0, lambda high: high),
    ),
    _policy(
        "no upper clip",
        r"upper clip missing|no upper|only below|clip-?higher",
        _bounded(lambda low: low, lambda high: 1e6),
    ),
    _policy(
        "epsilon_low and epsilon_high swapped",
        r"swapped|exchanged",
        _swapped,
        lambda d: clipped(d) and d.hyper["epsilon_low"] != d.hyper["epsilon_high"],
    ),
    _policy(
        "epsilon_low on both sides",
        rf"epsilon_low (used )?on both|{_EPSILON}.*(both|is|of|=|0\.)",
        _low_on_both,
        lambda d: clipped(d) and d.hyper["epsilon_low"] != d.hyper["epsilon_high"],
    ),
    _policy(
        "half the epsilon",
        rf"{_EPSILON}.*(\d|half)",
        _bounded(lambda low: 1 - (1 - low) / 2, lambda high: 1 + (high - 1) / 2),
    ),
    _policy(
        "twice the epsilon",
        rf"{_EPSILON}.*(\d|twice|double)",
        _bounded(lambda low: 1 - (1 - low) * 2, lambda high: 1 + (high - 1) * 2),
    ),
    _policy("lower bound 1/(1 + ε)", r"1 ?/ ?\(1 ?\+|reciprocal", _reciprocal),
    _policy("clip in log space", r"log.?space|log.?ratio.*(clip|clamp)|(clip|clamp).*log.?ratio|e\^", _log_space),
    _policy("clip straight-through", r"straight.?through|clip.*gradient|gradient.*clip", _through),
    _policy("ratio detached", _NO_GRADIENT, _detached),
    _policy(
        "log-prob for the ratio",
        r"reinforce|log.?prob.*(for|where).*ratio|log π",
        _reinforce,
    ),
    _policy(
        "1 + log ratio for the ratio",
        r"1 ?\+ ?(the )?log|log.?ratio (for|where|instead)|no exp|exp(onential)? (is )?missing|first.order|linear",
        _log_for_ratio,
    ),
    _policy("cispo's weight with its gradient", r"stop.?grad|detach|gradient (of|through)", _cispo_grad, cispo),
    _policy(
        "cispo's bound at 1 + ε",
        rf"1 ?\+ ?ε|{_EPSILON}.*(\d|1)|bound|clip missing|unclipped|reinforce|cispo",
        _cispo_plus_one,
        cispo,
    ),
    _policy(
        "cispo without its bound",
        r"unclipped|clip missing|no (clip|bound)|bound (is )?missing|without (a |the )?(clip|bound)",
        _cispo_free,
        cispo,
    ),
)
