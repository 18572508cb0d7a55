"""What came of the cases: counts by flag, the conventions followed, what was not claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from grpo_cli.mistakes import flags, mistakes
from grpo_cli.vectors.case import VERSION
from grpo_cli.vectors.likely import CLEAR, likely, shown
from grpo_cli.vectors.verdict import COARSE, Wrong

OUTCOMES = ("passed", "failed", "xfailed", "not claimed")
NAMED, LISTED = 3, 8
"""How many mistakes are printed, and how many conventions and claims."""

NEXT = 0.75
"""A mistake is named after the first if it explains this part of what the first explains."""


class Outcome(NamedTuple):
    """One case on one loss, as it travels between processes.

    Attributes:
        fixture: the node that returned the loss.
        case: the case's id.
        flags: the case's.
        outcome: one of ``OUTCOMES``.
        reason: why it failed, was expected to, or was not run.
        signature: the convention followed, as ``topic: signature``.
        line: the line of the xfail file that covers the case.
        wrong: what is wrong of the answer, as ``Wrong``; None where there is no answer.
    """

    fixture: str
    case: str
    flags: Iterable[str]
    outcome: str = "failed"
    reason: str = ""
    signature: str = ""
    line: str = ""
    wrong: tuple[str, float | None] | None = None


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
    yield from _named(found["likely"], found["failed"])
    if found["float32"]:
        yield f"  {found['float32']} failures are due to float32 precision; {COARSE} accepts them"
    for title in ("conventions", "not claimed by"):
        if found[title]:
            first = [f"{name} ({count})" for name, count in [*found[title].items()][:LISTED]]
            more = len(found[title]) - LISTED
            yield f"  {title}: {', '.join(first)}" + (f", … and {more} more" if more > 0 else "")
    if found["unneeded"]:
        yield f"  entries of the xfail file that no case needs: {', '.join(found['unneeded'])}"


def _named(found: list[dict[str, Any]], failures: int) -> Iterator[str]:
    """Yields the mistake that explains the failures best, in a sentence, and the next ones."""
    for at, row in enumerate(found[:NAMED]):
        likely = "most likely" if row["share"] >= CLEAR else "the closest known mistake"
        yield f"  {'or' if at else likely}: {row['mistake']}: {row['bug']}; {row['thread']}"
        yield (
            f"    explains {row['explained']} of {failures} failures; "
            f"fails {row['failing']} of the cases that ran"
        )


def _document(outcomes: list[Outcome]) -> dict[str, Any]:
    counts = Counter(one.outcome for one in outcomes)
    needed = {one.line for one in outcomes if one.outcome == "xfailed"}
    return {
        **{name: counts[name] for name in OUTCOMES},
        "likely": _likely(outcomes),
        "float32": sum(COARSE in one.reason for one in outcomes if one.outcome == "failed"),
        "flags": _by_flag(outcomes),
        "conventions": _counted(one.signature for one in outcomes),
        "not claimed by": _counted(one.reason for one in outcomes if one.outcome == "not claimed"),
        "passes": [one.case for one in outcomes if one.outcome == "passed"],
        "failures": {one.case: one.reason for one in outcomes if one.outcome == "failed"},
        "expected failures": {one.case: one.reason for one in outcomes if one.outcome == "xfailed"},
        "unneeded": sorted({one.line for one in outcomes if one.line} - needed),
    }


def _likely(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Returns the mistakes that explain unexpected failures about equally well, the best first."""
    run = {o.case: Wrong(*o.wrong) for o in outcomes if o.wrong and o.outcome in OUTCOMES[:2]}
    found = likely({case: wrong for case, wrong in run.items() if wrong.part != "?"})
    near = [match for match in found if match.share > found[0].share * NEXT]
    return [match._asdict() | shown(mistakes()[match.mistake]) for match in near]


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
    run = total["passed"] + total["failed"] + total["xfailed"]
    color = "red" if total["failed"] or not run else "yellow" if total["xfailed"] else "green"
    message = f"{total['passed']} of {run}, {total['not claimed']} not claimed"
    return {"schemaVersion": 1, "label": "grpo vectors", "message": message, "color": color}
