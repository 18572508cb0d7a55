"""How messages say where something is and what came instead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import orjson

_LONGEST = 40
_INTEGERS = 10**17  # beyond these, digits say less than an exponent


def got(value: object) -> str:
    """A value as a message shows it: ``null``, ``NaN``, ``0.5``, ``"abc"``, ``a list``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else str(value).removesuffix(".0")
    if isinstance(value, str):
        text = value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
        return orjson.dumps(text).decode() + _printed(value)
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= _INTEGERS:
        return got(as_float(value))
    return str(value)


def _printed(text: str) -> str:
    """What to do about numbers that were printed where they should have been written."""
    if text.startswith(("tensor(", "array(")):
        return " (a tensor as it is printed; dump its .tolist())"
    if text.startswith("[") and text.endswith("]"):
        return " (a list in a string; dump the list itself)"
    return ""


def as_float(value: int | float) -> float:
    """The nearest float; an infinite one for an integer beyond them all."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def count(number: int, word: str) -> str:
    """``1 response``, ``3 responses``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def index(flat: int, nested: int, widths: Sequence[int], shape: Sequence[int] | None) -> str:
    """Where the element with a flat index stands, as the user nested it: ``[3][17]``.

    Args:
        flat: index into the elements of all responses, one response after the other.
        nested: 1, 2 or 3 levels of lists.
        widths: [R] elements of each response as written.
        shape: the number of responses of each group, for 3 levels.
    """
    if nested == 1:
        return f"[{flat}]"
    row = 0
    while flat >= widths[row]:
        flat -= widths[row]
        row += 1
    return f"{response(row, shape)}[{flat}]"


def response(row: int, shape: Sequence[int] | None) -> str:
    """Where a response stands: ``[3]``, or ``[0][3]`` where groups are nested."""
    if shape is None:
        return f"[{row}]"
    group = 0
    while row >= shape[group]:
        row -= shape[group]
        group += 1
    return f"[{group}][{row}]"
