"""Ranks the mistakes of the catalogue by how well they explain a failing run.

Each mistake was planted in a plain loss, in each form in which it was seen. ``fails.json`` has the
cases that failed and the first wrong number of each; a run is compared with each form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from grpo_cli.mistakes import Mistake
from grpo_cli.vectors.case import FILES, Tolerance, cases, numbers, stored
from grpo_cli.vectors.verdict import Wrong, near

NEAR = Tolerance(relative=1e-3, absolute=1e-6)
"""Numbers of ``fails.json`` have five digits; a loss in bfloat16 has fewer."""

CLEAR = 2 / 3
"""The share of the evidence from which a mistake is called likely, not only the closest."""


Form = tuple[str, Mapping[str, Wrong]]
"""A mistake in one form, and the answers of the cases that were tried with it planted."""


class Likely(NamedTuple):
    """How well a mistake explains a run.

    Attributes:
        mistake: its name in the catalogue.
        share: of all that fails in the run or would with the mistake (a value, a gradient, the
            first wrong number of a case), the part that is the same in both.
        explained: failures of the run that the mistake has too.
        failing: cases of the run that fail with the mistake.
    """

    mistake: str
    share: float
    explained: int
    failing: int


def shown(mistake: Mistake) -> dict[str, str]:
    """Returns the bug of a mistake, and the thread about it."""
    return {"bug": mistake.bug, "thread": mistake.thread}


@cache
def forms() -> tuple[Form, ...]:
    """Reads all forms of all mistakes."""
    ids = {name: [case.id for case in cases() if case.file == name] for name in FILES}
    return tuple(_form(entry, ids) for entry in json.loads(stored("fails.json"))["forms"])


def _form(entry: Mapping[str, Any], ids: Mapping[str, list[str]]) -> Form:
    found = iter(numbers(entry["numbers"]))
    wrong = {
        case: Wrong(part, None if part == "." else next(found))
        for name in FILES
        for case, part in zip(ids[name], entry[name], strict=True)
        if part != "?"
    }
    return entry["mistake"], wrong


@cache
def failing(mistake: str) -> frozenset[str]:
    """Returns the cases that fail with a mistake in any form, and those that are there for it."""
    there = {case.id for case in cases() if mistake in case.flags}
    tried = [wrong.items() for name, wrong in forms() if name == mistake]
    return frozenset(there.union(*({case for case, w in items if w.kinds} for items in tried)))


def likely(answers: Mapping[str, Wrong]) -> list[Likely]:
    """Ranks the mistakes by how well each explains the answers of a run, the best first."""
    best: dict[str, Likely] = {}
    for found in (_compared(form, answers) for form in forms()):
        if found.explained and found.share > best.get(found.mistake, found._replace(share=0)).share:
            best[found.mistake] = found
    return sorted(best.values(), key=lambda found: -found.share)


def _compared(form: Form, answers: Mapping[str, Wrong]) -> Likely:
    mistake, tried = form
    pairs = [(tried[case], wrong) for case, wrong in answers.items() if case in tried]
    evidence = [_evidence(planted, wrong) for planted, wrong in pairs]
    same, all_ = (sum(counts) for counts in zip(*evidence, strict=True)) if pairs else (0, 0)
    return Likely(
        mistake,
        same / all_ if all_ else 0.0,
        sum(bool(planted.kinds and wrong.kinds) for planted, wrong in pairs),
        sum(bool(planted.kinds) for planted, _ in pairs),
    )


def _evidence(planted: Wrong, wrong: Wrong) -> tuple[int, int]:
    """Counts the wrong parts that two answers share, and those of either."""
    if not planted.kinds | wrong.kinds:
        return 0, 0
    same = planted.kinds & wrong.kinds
    if planted.number is None or wrong.number is None:
        equal = bool(same) and planted.number is wrong.number
    else:
        equal = bool(same) and near(planted.number, wrong.number, NEAR)
    return len(same) + equal, len(planted.kinds | wrong.kinds) + 1
