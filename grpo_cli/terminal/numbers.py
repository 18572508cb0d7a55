"""Numbers and strings as a table shows them, and strings in what is written for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

_LONGEST = 40

_ROUNDING = 1e-13
"""Of the size of its terms, what a sum is that is 0 but for their rounding."""


def shown(value: Any) -> str:
    """A value in a table's cell: 6 significant digits, thousands apart, nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return " ".join(f"{visible(name)}={shown(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(shown, value))
    return shortened(visible(value if isinstance(value, str) else orjson.dumps(value).decode()))


def shown_among(value: Any, size: float | None) -> str:
    """As ``shown``; ≈0 where it is what rounding leaves of 0 in a sum of terms of that size."""
    rounding = _ROUNDING * (size or 0.0)
    return "≈0" if isinstance(value, float) and 0.0 < abs(value) < rounding else shown(value)


def percent(value: float | None) -> str:
    """A share in percent with two decimals; nothing as a dash."""
    return "–" if value is None else f"{value:.2%}"


def visible(text: str) -> str:
    """Text in which nothing moves the cursor: control and format characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def token_text(text: str) -> str:
    """A token, whose spaces at either end can be seen."""
    inner = text.strip(" ")
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    if not inner:
        return "␣" * len(text)
    return shortened("␣" * before + visible(inner) + "␣" * after)


def shortened(text: str) -> str:
    """A long string cut; only strings ever are, never numbers."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def aligned(numbers: Sequence[str]) -> list[str]:
    """Numbers padded on both sides so that their decimal points stand under each other."""
    tails = [_tail(number) for number in numbers]
    longest = max(tails, default=0)
    padded = [f"{one}{' ' * (longest - tail)}" for one, tail in zip(numbers, tails, strict=True)]
    width = max(map(len, padded), default=0)
    return [one.rjust(width) for one in padded]


def _tail(number: str) -> int:
    """How many characters stand from the decimal point (or where it would be) on."""
    for place, character in enumerate(number):
        if character in ".e":
            return len(number) - place
    return 0


_MOVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 but for tabs and ends of lines, DEL, C1, and what changes the direction of text."""


def escaped(text: str) -> str:
    r"""Text with ``\u001b`` in the place of a control character; in JSON it means the same."""
    if text.isprintable():
        return text
    return _MOVING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escaped_json(data: bytes) -> bytes:
    """JSON with the same values; that of numbers alone is returned as it is."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return escaped(data.decode()).encode()
