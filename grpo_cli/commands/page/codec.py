"""Columns of float64 → few bytes, without losing a bit; ``assets/codec.js`` reads them.

Every column is written in the shortest of these ways that gives the same bits back:

- ``each``: one number per response;
- ``dec``: whole numbers over a power of ten, as log-probs that were printed with few digits;
- ``f4``: float32, as log-probs that were computed so;
- ``f8``: as they are;
- ``near``: by how many units in the last place they differ from an expression of columns before
  them, and in full where that is far. So a ratio costs almost nothing more than its log-probs.

Expressions are made of +, −, × and of an exponential that is written out below in these, so that
IEEE arithmetic gives the same bits here and in any browser.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments

Spec = dict[str, Any]
Expression = Any
"""A column's name, a number, or a list of an operator and its operands."""

_SAMPLE = 8_192
"""The tokens on which ways are compared."""
_FAR = -(2**31)
"""Marks a value that no difference of 32 bits leads to."""
_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_TERMS = 13
_MOST = 700.0


def encoded(
    values: F64, responses: Segments, known: Mapping[str, F64], guesses: Sequence[Expression] = ()
) -> tuple[Spec, bytes]:
    """A column's way, and its bytes.

    Args:
        values: [N] the column.
        responses: its segments.
        known: the columns that were written before it.
        guesses: expressions of those that it may be near to.
    """
    each = _each(values, responses)
    if each is not None:
        return each
    sample = slice(0, min(len(values), _SAMPLE))
    ways = [*_direct(values), *(_near_to(guess, known) for guess in guesses)]
    tried = [way(values, sample) for way in ways]
    sizes = [math.inf if one is None else len(zlib.compress(one[1], 1)) for one in tried]
    for place in sorted(range(len(ways)), key=sizes.__getitem__):
        of_all = len(values) <= _SAMPLE
        result = tried[place] if of_all else ways[place](values, slice(None))
        if result is not None:
            return result
    raise AssertionError("f8 always works")


Way = Callable[[F64, slice], tuple[Spec, bytes] | None]


def _each(values: F64, responses: Segments) -> tuple[Spec, bytes] | None:
    """One number per response, where its tokens have no other."""
    firsts = np.zeros(responses.count)
    filled = responses.lengths > 0
    firsts[filled] = values[responses.starts[filled]]
    if not same_bits(responses.spread(firsts), values):
        return None
    return {"way": "each"}, planes(firsts)


def _direct(values: F64) -> Iterator[Way]:
    yield from (_decimal(digits) for digits in _digits(values))
    yield _single
    yield lambda values, part: ({"way": "f8"}, planes(values[part]))


def _digits(values: F64) -> list[int]:
    """The fewest decimals, up to 9, with which the first values are written."""
    first = values[: min(len(values), 256)]
    for digits in range(10):
        # Most columns have none, which their first value says more quickly than all of them.
        if _may_be_decimal(first[:1].tolist(), digits) and _whole(first, digits) is not None:
            return [digits]
    return []


def _may_be_decimal(first: list[float], digits: int) -> bool:
    return all(abs(x) < 2.0**32 and round(x * 10.0**digits) / 10.0**digits == x for x in first)


def _decimal(digits: int) -> Way:
    def way(values: F64, part: slice) -> tuple[Spec, bytes] | None:
        whole = _whole(values[part], digits)
        return None if whole is None else ({"way": "dec", "digits": digits}, planes(whole))

    return way


def _whole(values: F64, digits: int) -> NDArray[np.int32] | None:
    with np.errstate(all="ignore"):
        whole = np.rint(values * 10.0**digits)
        if not (np.abs(whole) < 2**31).all() or not same_bits(whole / 10.0**digits, values):
            return None
    return whole.astype(np.int32)


def _single(values: F64, part: slice) -> tuple[Spec, bytes] | None:
    with np.errstate(all="ignore"):
        single = values[part].astype(np.float32)
        if not same_bits(single.astype(np.float64), values[part]):
            return None
    return {"way": "f4"}, planes(single)


def _near_to(expression: Expression, known: Mapping[str, F64]) -> Way:
    def way(values: F64, part: slice) -> tuple[Spec, bytes] | None:
        with np.errstate(all="ignore"):
            guess = calculated(expression, {name: one[part] for name, one in known.items()})
        # Bits as whole numbers: neighbours differ by 1. The difference may wrap round.
        steps = values[part].view(np.int64) - guess.view(np.int64)
        far = (steps >= 2**31) | (steps <= _FAR)
        if np.count_nonzero(far) > len(far) // 2:
            return None
        full = values[part][far]
        near = np.where(far, _FAR, steps).astype(np.int32)
        spec = {"way": "near", "of": expression, "far": len(full)}
        return spec, planes(near) + planes(full)

    return way


def calculated(expression: Expression, known: Mapping[str, F64]) -> F64:
    """[N] what an expression gives for columns."""
    size = len(next(iter(known.values())))
    if isinstance(expression, str):
        return known[expression]
    if isinstance(expression, float | int):
        return np.full(size, float(expression))
    operator, *operands = expression
    return _OPERATORS[operator](*(calculated(one, known) for one in operands))


def _power(x: F64, *, less_one: bool) -> F64:
    """eˣ, or eˣ − 1, to about a unit in the last place; 0 where it is far from 1."""
    usual = np.abs(x) < _MOST
    x = np.where(usual, x, 0.0)
    twos = np.floor(x * _LOG2E + 0.5)
    rest = (x - twos * _LN2_HIGH) - twos * _LN2_LOW
    sum_ = np.full_like(x, 1.0 / math.factorial(_TERMS))
    for term in range(_TERMS - 1, 1, -1):
        sum_ = sum_ * rest + 1.0 / math.factorial(term)
    small = rest + (rest * rest) * sum_
    scaled = (small + 1.0) * np.ldexp(1.0, twos.astype(np.int64))
    if less_one:
        scaled = np.where(twos == 0.0, small, scaled - 1.0)
    return np.where(usual, scaled, 0.0)


_OPERATORS: Mapping[str, Callable[..., F64]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "exp": lambda x: _power(x, less_one=False),
    "expm1": lambda x: _power(x, less_one=True),
}


def planes(values: NDArray[Any]) -> bytes:
    """The first bytes of all numbers, then the second ones: alike, so that they deflate well."""
    width = values.dtype.itemsize
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(-1, width).T.tobytes()


def same_bits(left: F64, right: F64) -> bool:
    """Whether all numbers are the same to the last bit, their zeros' signs too."""
    return bool(np.array_equal(left.view(np.int64), right.view(np.int64)))


# ---- guesses -----------------------------------------------------------------------------------
#
# A wrong guess costs nothing: a column is stored by what it differs from it. So these are no second
# copy of the mathematics, they only make the page small.

NEW, OLD, REF, ROLLOUT = "log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"


def guesses(name: str, known: Collection[str], beta: float) -> Sequence[Expression]:
    """Expressions of known columns that the column may be near to."""
    return [one for one in _all(beta).get(name, ()) if _names(one) <= set(known)]


def _names(expression: Expression) -> set[str]:
    if isinstance(expression, str):
        return {expression}
    if isinstance(expression, list):
        return set().union(*map(_names, expression[1:]))
    return set()


def _all(beta: float) -> Mapping[str, Sequence[Expression]]:
    change = ["-", NEW, REF]
    shrunk = ["expm1", ["-", REF, NEW]]
    k3 = ["+", shrunk, change]
    policy = ["surrogate", ["*", "correction", "surrogate"]]
    moved = [["*", "free", one] for one in policy] + policy
    pulls = [["*", beta, shrunk], ["*", -beta, change]]
    minus_kl = ["*", ["*", -beta, "weight"], "kl"]
    return {
        OLD: [NEW],
        REF: [NEW, OLD],
        ROLLOUT: [OLD, NEW],
        "log_ratio": [["-", NEW, OLD]],
        "ratio": [["exp", "log_ratio"]],
        "difference": [["-", NEW, OLD]],
        "mismatch": [["-", OLD, ROLLOUT], ["-", NEW, ROLLOUT]],
        "surrogate": [["*", "ratio", "advantage"]],
        "kl": [k3, change, ["*", ["*", 0.5, change], change], ["*", "ratio", k3]],
        "contribution": [
            *(["*", "weight", one] for one in policy),
            *(["+", ["*", "weight", one], minus_kl] for one in policy),
        ],
        "gradient": [
            *(["*", "weight", one] for one in moved),
            *(["*", "weight", ["+", one, pull]] for one, pull in product(moved, pulls)),
        ],
    }
