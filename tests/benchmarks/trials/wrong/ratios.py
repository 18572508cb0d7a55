"""Ratios taken wrongly, or for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trials.simulate.policy import F64
from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import bounds, log_ratio
from trials.trl.tape import Var
from trials.wrong.clips import policy_term
from trials.wrong.mistake import Mistake, cispo, clipped, sequence_level, token_level, with_kl


def _ratio(name: str, right: str, made: Callable[[Data, Var], Var], needs: Any) -> Mistake:
    return Mistake(name, right, {"log_ratio": made}, needs=needs)


def _sequence(data: Data, new: Var) -> Var:
    sums = tape.rows(new - data.old, data.index, data.count)
    return tape.spread(sums / data.lengths, data.index)


def _product(data: Data, new: Var) -> Var:
    return tape.spread(tape.rows(new - data.old, data.index, data.count), data.index)


def _moved(data: Data) -> bool:
    return clipped(data) and bool(np.abs(data.new - data.old).max() > 0.01)


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
    policy_term("ratio detached", _NO_GRADIENT, _detached),
    policy_term(
        "log-prob for the ratio",
        r"reinforce|log.?prob.*(for|where).*ratio|log π",
        _reinforce,
    ),
    policy_term(
        "1 + log ratio for the ratio",
        r"1 ?\+ ?(the )?log|log.?ratio (for|where|instead)|no exp|exp(onential)? (is )?missing|"
        r"first.order|linear",
        _log_for_ratio,
    ),
    policy_term(
        "cispo's weight with its gradient",
        r"stop.?grad|detach|gradient (of|through)",
        _cispo_grad,
        cispo,
    ),
    policy_term(
        "cispo's bound at 1 + ε",
        rf"1 ?\+ ?ε|{_EPSILON}.*(\d|1)|bound|clip missing|unclipped|reinforce|cispo",
        _cispo_plus_one,
        cispo,
    ),
    policy_term(
        "cispo without its bound",
        r"unclipped|(clip|bound) (is )?missing|(no|without (a|the|its)) (clip|bound)",
        _cispo_free,
        cispo,
    ),
)
