"""What came of the cases: counts by flag, the conventions followed, what was not claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from grpo_cli.mistakes import flags
from grpo_cli.vectors.case import VERSION
from grpo_cli.vectors.verdict import COARSE

OUTCOMES = ("passed", "failed", "not claimed")
LISTED = 8
"""How many flags, conventions and claims are printed."""


class Outcome(NamedTuple):
    """One case on one loss, as it travels between processes.

    Attributes:
        fixture: the node that returned the loss.
        case: the case's id.
        flags: the case's.
        outcome: one of ``OUTCOMES``.
        reason: why it failed, or was not run.
        signature: the convention followed, as ``topic: signature``.
    """

    fixture: str
    case: str
    flags: Iterable[str]
    outcome: str = "failed"
    reason: str = ""
    signature: str = ""


@dataclass
class Tally:
    """All outcomes of a run."""

    outcomes: list[Outcome] = field(default_factory=list)

    def fixtures(self) -> Iterator[tuple[str, list[Outcome]]]:
        """The outcomes of each loss, by case."""
        last = {(one.fixture, one.case): one for one in self.outcomes}
        ordered = [last[key] for key in sorted(last)]
        for fixture, outcomes in groupby(ordered, key=lambda one: one.fixture):
            yield fixture, list(outcomes)

    def lines(self) -> Iterator[str]:
        """The summary as pytest prints it."""
        if not self.outcomes:
            yield "no test module has a fixture named grpo_vectors (example: grpo help vectors)"
        for fixture, outcomes in self.fixtures():
            yield from _printed(fixture, outcomes)

    def document(self) -> dict[str, Any]:
        """The summary as ``--grpo-vectors-json`` writes it; ``badge`` is a shields.io endpoint."""
        found = {fixture: _document(outcomes) for fixture, outcomes in self.fixtures()}
        return {"vectors": VERSION, "badge": _badge(found), "fixtures": found}


def _printed(fixture: str, outcomes: list[Outcome]) -> Iterator[str]:
    found = _document(outcomes)
    yield f"{fixture}: " + ", ".join(f"{found[name]} {name}" for name in OUTCOMES)
    if found["float32"]:
        yield f"  {found['float32']} failures are due to float32 precision; {COARSE} accepts them"
    for title in ("failed by flag", "conventions", "not claimed by"):
        if found[title]:
            first = [f"{name} ({count})" for name, count in [*found[title].items()][:LISTED]]
            more = len(found[title]) - LISTED
            yield f"  {title}: {', '.join(first)}" + (f", … and {more} more" if more > 0 else "")


def _document(outcomes: list[Outcome]) -> dict[str, Any]:
    counts = Counter(one.outcome for one in outcomes)
    return {
        **{name: counts[name] for name in OUTCOMES},
        "float32": sum(COARSE in one.reason for one in outcomes if one.outcome == "failed"),
        "flags": _by_flag(outcomes),
        "failed by flag": _counted(
            flag for one in outcomes if one.outcome == "failed" for flag in one.flags
        ),
        "conventions": _counted(one.signature for one in outcomes),
        "not claimed by": _counted(one.reason for one in outcomes if one.outcome == "not claimed"),
        "passes": [one.case for one in outcomes if one.outcome == "passed"],
        "failures": {one.case: one.reason for one in outcomes if one.outcome == "failed"},
    }


def _by_flag(outcomes: list[Outcome]) -> dict[str, dict[str, int]]:
    pairs = Counter((flag, one.outcome) for one in outcomes for flag in one.flags)
    seen = {flag for flag, _ in pairs}
    return {
        flag: {name: pairs[flag, name] for name in OUTCOMES} for flag in flags() if flag in seen
    }


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(word for word in words if word).most_common())


def _badge(found: dict[str, Any]) -> dict[str, Any]:
    total = Counter({name: sum(one[name] for one in found.values()) for name in OUTCOMES})
    run = total["passed"] + total["failed"]
    color = "red" if total["failed"] or not run else "green"
    message = f"{total['passed']} of {run}, {total['not claimed']} not claimed"
    return {"schemaVersion": 1, "label": "grpo vectors", "message": message, "color": color}
