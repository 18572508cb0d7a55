"""Numbers that belong to whole responses."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.packed import LARGEST
from grpo_cli.records.parse.columns import Shape
from grpo_cli.records.places import as_float, count, got, response

WITHIN = f"a number between {-LARGEST:g} and {LARGEST:g}"

_FLOATS, _NUMBERS = {float}, {float, int}
Place = Callable[[int], str]


def is_number(value: object) -> bool:
    """Whether a decoded value is a number (true and false are not)."""
    return isinstance(value, float | int) and not isinstance(value, bool)


def finite(values: list[Any], place: Place) -> list[float]:
    """The same numbers as floats.

    Args:
        values: what should be numbers.
        place: the path of the element with an index.

    Raises:
        InputError: at the first that is no number, not finite, or beyond ``LARGEST``.
    """
    kinds = set(map(type, values))
    if kinds <= _NUMBERS and all(map(_is_usable, values)):
        return values if kinds == _FLOATS else list(map(float, values))
    bad = (at for at, one in enumerate(values) if not (is_number(one) and _is_usable(one)))
    at = next(bad)
    raise InputError(f"expected {_wanted_kind(values[at])}, got {got(values[at])}", path=place(at))


def _is_usable(value: float) -> bool:
    return -LARGEST <= value <= LARGEST  # a NaN is not


def _wanted_kind(value: Any) -> str:
    if not is_number(value):
        return "a number"
    return WITHIN if isfinite(as_float(value)) else "a finite number"


def per_response(key: str, value: object, shape: Shape, what: str) -> tuple[list[Any], Place]:
    """[R] one element for each response, and where each stands.

    A single number is the list of one where there is one response. Where groups are nested, the
    elements may be nested likewise.

    Raises:
        InputError: if there are fewer or more than responses; ``what`` is what they are.
    """
    responses = len(shape.widths)
    if type(value) is not list:
        if responses == 1:
            return [value], lambda _: key
        came = f"got {got(value)}{_doubt(shape, 1, what)}"
        raise InputError(f"expected {_wanted(responses, what)}, {came}", path=key)
    if shape.outer is not None and value and type(value[0]) is list and _nested(value, shape.outer):
        flat = [one for group in value for one in group]
        return flat, lambda at: f"{key}{response(at, shape.outer)}"
    if len(value) != responses:
        came = f"got {len(value)}{_doubt(shape, len(value), what)}"
        raise InputError(f"expected {_wanted(responses, what)}, {came}", path=key)
    return value, lambda at: f"{key}[{at}]"


def _doubt(shape: Shape, size: int, what: str) -> str:
    """What to say where the column may be meant for other responses than its nesting says.

    One list of numbers may be one response's tokens, and lists for each token all of its words'.
    """
    if shape.nested > 1:
        return shape.doubt if size == (1 if shape.outer is None else len(shape.outer)) else ""
    if shape.single or what != "reward":
        return ""
    return f"; {shape.key} is a flat list, a number per response: tokens of a response are [[…]]"


def _nested(value: list[Any], outer: list[int]) -> bool:
    return all(type(one) is list for one in value) and list(map(len, value)) == outer


def _wanted(responses: int, what: str) -> str:
    return f"{count(responses, what)} (one per response)"
