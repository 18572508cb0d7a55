"""The catalogue of mistakes: what implementations of these losses have computed wrongly.

Each row of ``mistakes.json`` is one mistake. ``vectors`` flags its cases with the rows, ``verify``
names a row as the cause of a difference, and tests/benchmarks plants them. Where one of the three
has nothing for a row, the row says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple


class Mistake(NamedTuple):
    """One mistake.

    Attributes:
        name: its name in the catalogue; a flag of the vectors has the same.
        stage: the stage that computes it.
        bug: what is computed instead, in a sentence.
        thread: where it was reported or mended, or the paper that it departs from.
        words: what ``verify`` calls it, by variant; "" for the plain one. Causes whose words have
            numbers are worded where those are known.
        common: whether it is a usual convention or slip: of causes that fit alike it comes first.
        no_vector: why no case of the vectors is flagged with it; "" where some are.
        no_cause: why ``verify`` does not name it; "" where it does.
        no_plant: why the experiment in tests/benchmarks does not plant it; "" where it does.
    """

    name: str
    stage: str
    bug: str
    thread: str
    words: Mapping[str, str] = MappingProxyType({})
    common: bool = False
    no_vector: str = ""
    no_cause: str = ""
    no_plant: str = ""


@cache
def mistakes() -> Mapping[str, Mistake]:
    """Name → mistake, in the order of the catalogue."""
    text = files(__package__).joinpath("mistakes.json").read_text(encoding="utf-8")
    return {name: Mistake(name, **_holes(row)) for name, row in json.loads(text).items()}


def causes() -> list[str]:
    """The mistakes that ``verify`` names."""
    return [name for name, row in mistakes().items() if not row.no_cause]


def _holes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Spells out ``no cause plant``, a reason for several holes."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        first, *holes = key.split()
        found |= {f"{first}_{hole}": value for hole in holes} or {key: value}
    return found


def flags() -> Mapping[str, Mistake]:
    """Name → mistake, of those that cases of the vectors may find."""
    return {name: row for name, row in mistakes().items() if not row.no_vector}


def worded(key: str) -> tuple[str, str]:
    """Returns the row and the words of a key, ``row`` or ``row.variant``."""
    name, _, variant = key.partition(".")
    return name, mistakes()[name].words[variant]
