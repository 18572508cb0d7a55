"""Numbers that belong to whole responses."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.columns import Shape
from grpo_cli.records.places import count, got, response

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
        InputError: at the first that is no number, or not finite.
    """
    kinds = set(map(type, values))
    try:
        if kinds <= _NUMBERS and all(map(isfinite, values)):
            return values if kinds == _FLOATS else list(map(float, values))
    except OverflowError:  # an integer beyond every float
        pass
    at = next(at for at, value in enumerate(values) if not _is_finite(value))
    kind = "a finite number" if is_number(values[at]) else "a number"
    raise InputError(f"expected {kind}, got {got(values[at])}", path=place(at))


def _is_finite(value: Any) -> bool:
    try:
        return is_number(value) and isfinite(value)
    except OverflowError:
        return False


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
        raise InputError(f"expected {_wanted(responses, what)}, got {got(value)}", path=key)
    if shape.outer is not None and value and type(value[0]) is list and _nested(value, shape.outer):
        flat = [one for group in value for one in group]
        return flat, lambda at: f"{key}{response(at, shape.outer)}"
    if len(value) != responses:
        raise InputError(f"expected {_wanted(responses, what)}, got {len(value)}", path=key)
    return value, lambda at: f"{key}[{at}]"


def _nested(value: list[Any], outer: list[int]) -> bool:
    return all(type(one) is list for one in value) and list(map(len, value)) == outer


def _wanted(responses: int, what: str) -> str:
    return f"{count(responses, what)} (one per response)"
