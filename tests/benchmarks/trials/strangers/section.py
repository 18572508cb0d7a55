"""The list of strangers' mistakes as a section of the experiment: ``verify``, ``check``, ``match``.

Every entry was written from a fix or a report, with what an answer must say of it, before any was
run, by somebody who had read neither causes nor rules; whoever builds has read its clean
batches alone. Two other lists were read, and removed: the page of answers has the fourth's rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from trials import product
from trials.score import Count, Task
from trials.strangers import checking, matching, verifying
from trials.strangers.mistake import Exam
from trials.strangers3.exam import THIRD

EXAMS = {THIRD.name: THIRD}
_MODULES = {"verify": verifying, "check": checking, "match": matching}

HELD = {
    verifying.NAMED: "≥ 50 %",
    verifying.MISLED: "≤ 10 %",
    verifying.GUESSED: "≤ 10 %",
    verifying.RIGHT: "0 %",
    checking.NAMED: "≥ 72 %",
    checking.OTHER: "≤ 8 %",
    checking.FALSE: "≤ 6 %",
    matching.FIRST: "≥ 85 %",
    matching.WRONG: "≤ 1 %",
    matching.OPEN: "≥ 80 %",
    matching.OPEN_WRONG: "≤ 1 %",
}
"""What must not be missed; the figures are on the page of answers."""

GOALS = [(THIRD.row(row), bar) for row, bar in HELD.items()]


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for exam in EXAMS.values():
        for module in _MODULES.values():
            yield from module.tasks(exam, first, seeds)


def _parts(task: Task) -> tuple[ModuleType, Exam]:
    name, module, *_ = task.name.split("/")
    return _MODULES[module], EXAMS[name]


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    module, exam = _parts(task)
    found: tuple[list[product.Record], list[str]] = module.records(exam, task)
    return found


def ask_one(task: Task) -> dict[str, Count]:
    module, exam = _parts(task)
    found: dict[str, Count] = module.ask_one(exam, task)
    return found
