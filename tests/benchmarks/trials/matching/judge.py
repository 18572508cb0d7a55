"""Whether what ``match`` lists is the truth, and whether it says that a hit is chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trials.matching.truth import Truth, with_constants
from trials.product import Record, place, printed_value

_SAME = 1e-3
"""How far off two values of one convention are on the probe: an eps in a std makes as much."""


@dataclass(frozen=True)
class Question:
    """A number, the records that it was logged of, and where it came from."""

    data: list[Record]
    probe: list[Record]
    truth: Truth
    value: float
    text: str


def judged(asked: Question, matches: list[dict[str, Any]]) -> tuple[bool, bool]:
    """Whether the truth stands first, and whether it is listed at all.

    A convention is the truth where it gives the truth's value on the probe, with the truth's ε
    where it says that the number leaves ε open. One that differs there but gives the very same
    number on the data may stand first, if the truth is listed beside it: the data cannot tell them
    apart.
    """
    probe = place(asked.probe, "probe")
    wanted = asked.truth.value(probe)
    places = [at for at, one in enumerate(matches) if _is(asked.truth, one, probe, wanted)]
    if not places:
        return False, False
    alike = near(float(matches[0]["value"]), asked.value, 1e-9)
    return places[0] == 0 or alike, True


def _is(truth: Truth, one: dict[str, Any], probe: str, wanted: float | None) -> bool:
    line = with_constants(_with_open(one), truth.constants)
    found = printed_value(line, probe)
    return found is not None and wanted is not None and near(found, wanted, _SAME)


def _with_open(one: dict[str, Any]) -> str:
    """Its command, in which what the number leaves open is said, so that it can be replaced."""
    line = str(one.get("command", ""))
    flags = [f"--{name.replace('_', '-')}" for name in one.get("any_from", ())]
    head, level, rest = line.partition(" --level ")
    return head + "".join(f" {flag} 0.2" for flag in flags if flag not in head) + level + rest


def near(one: float, other: float, within: float) -> bool:
    return abs(one - other) <= within * max(abs(one), abs(other))


def said_chance(document: Any) -> bool:
    """Whether the answer says that such a number is hit by chance: in words, or as a count."""
    if isinstance(document, dict):
        for key, value in document.items():
            if "chance" in key.lower() and _much(value):
                return True
        return any(said_chance(value) for value in document.values())
    if isinstance(document, list):
        return any(said_chance(value) for value in document)
    return isinstance(document, str) and "chance" in document.lower()


def _much(value: Any) -> bool:
    """A count of 0.3 and more (or True): not "well below 1"."""
    return isinstance(value, bool | int | float) and float(value) >= 0.3
