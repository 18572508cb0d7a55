"""Numbers and strings as text: in tables, in sums, in output for programs."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

_LONGEST = 40

_ROUNDING = 1e-13
"""Of the size of its terms, what a sum is that is 0 but for their rounding."""


def record_name(name: Any, line: int | None, source: str = "") -> str:
    """What a record is called: what ``--record`` takes, and in brackets where an editor finds it.

    Without its file (``source``) the line, from 1, is only for a record with a number, from 0.
    """
    place = f"line {line}" if name == (line or 0) - 1 else ""
    if source:
        place = visible(source) if line is None else f"{visible(source)}:{line}"
    named = name if isinstance(name, int) else shown(name)
    return f"record {named}" + (f" ({place})" if place else "")


def shown(value: Any) -> str:
    """A value in a table's cell: 6 significant digits, thousands with commas, nothing as a dash.

    Six are for what is compared and added up; ``brief`` is for fields whose kind is ``diagnostic``.
    """
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


def brief(value: Any) -> str:
    """A number with 4 significant digits, for diagnostics, axes and spans; else as ``shown``.

    Only 1 is 1: it is the ratio of a policy that did not change.
    """
    if not isinstance(value, float):
        return shown(value)
    text = f"{value:.4g}"
    return shown(value) if text == "1" else text


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and what is counted: ``1 token``, ``1,024 tokens``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def and_more(names: Sequence[str], most: int) -> str:
    """The first names between commas, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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


def cleaned(text: str) -> str:
    """Several lines of text in which nothing else moves the cursor."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def markup(text: str) -> str:
    """Text for HTML and SVG: nothing in it is markup, or changes the direction of text."""
    from html import escape  # slow to import, and rarely needed

    return escape(visible(text))


def shell_line(words: Iterable[str]) -> str:
    """Words as a shell takes them; what cannot be printed is escaped as in bash."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_shell_letter, word)) + "'"


def _shell_letter(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{one:02x}" for one in os.fsencode(letter))


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
    tails = [len(number) - len(_POINT.split(number, 1)[0]) for number in numbers]
    longest = max(tails, default=0)
    padded = [f"{one}{' ' * (longest - tail)}" for one, tail in zip(numbers, tails, strict=True)]
    width = max(map(len, padded), default=0)
    return [one.rjust(width) for one in padded]


_POINT = re.compile("[.e]")
"""The decimal point of a number, or where it would be."""


# ---- numbers of a sum ---------------------------------------------------------------------------


def decimals(values: Sequence[float]) -> int:
    """How many decimals give the largest of the values six significant digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if not largest:
        return 1
    return min(max(5 - math.floor(math.log10(largest)), 0), 15)


def equality(texts: Sequence[str], total: str) -> str:
    """``=`` where printed numbers make their printed total, else ``≈``."""
    places = len(total.partition(".")[2])
    return "=" if round(math.fsum(map(float, texts)) - float(total), places) == 0.0 else "≈"


def fixed(value: float, places: int) -> str:
    """A number to so many decimals, without a negative zero."""
    text = f"{value:.{places}f}"
    return text.removeprefix("-") if not float(text) else text


# ---- text for programs --------------------------------------------------------------------------

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


def is_round(value: float, within: float = 1e-4) -> bool:
    """Whether a number has at most two digits, so that somebody may have typed it."""
    return abs(value - float(f"{value:.2g}")) <= within * abs(value)
