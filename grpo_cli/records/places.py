"""How messages say where something is and what came instead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import orjson

_LONGEST = 40


def got(value: object) -> str:
    """A value as a message shows it: ``null``, ``NaN``, ``0.5``, ``"abc"``, ``a list``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.17g}" if value.is_integer() else f"{value}"
    if isinstance(value, str):
        text = value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
        return orjson.dumps(text).decode()
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return _shortened(value)


def _shortened(value: object) -> str:
    # str() of an integer refuses beyond a few thousand digits.
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    return str(value)


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
