"""The two lists as a section of the experiment: ``verify``, ``check`` and ``match``.

Every entry was written from a fix or a report, with what an answer must say of it, before any was
run, by somebody who had read neither causes nor rules. Whoever builds has seen the fourth list
since (its questions begin with "fourth/"), and not the third.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from trials import product
from trials.score import Count
from trials.strangers import checking, matching, verifying
from trials.strangers.exam import Exam
from trials.strangers3.exam import THIRD
from trials.strangers4.exam import FOURTH
from trials.task import Task

EXAMS = {exam.name: exam for exam in (FOURTH, THIRD)}
_MODULES = {"verify": verifying, "check": checking, "match": matching}

HELD = {
    verifying.NAMED: ("≥ 60 %", "≥ 50 %"),
    verifying.MISLED: ("≤ 5 %", "≤ 10 %"),
    verifying.GUESSED: ("≤ 5 %", "≤ 10 %"),
    verifying.RIGHT: ("0 %", "0 %"),
    checking.NAMED: ("≥ 72 %", "≥ 72 %"),
    checking.OTHER: ("≤ 3 %", "≤ 8 %"),
    checking.FALSE: ("≤ 3 %", "≤ 6 %"),
    matching.FIRST: ("≥ 85 %", "≥ 85 %"),
    matching.WRONG: ("≤ 1 %", "≤ 1 %"),
    matching.OPEN: ("≥ 75 %", "≥ 80 %"),
    matching.OPEN_WRONG: ("≤ 1 %", "≤ 1 %"),
}
"""What of the two lists must not be missed; the figures are on the page of answers."""

GOALS = [
    (exam.row(row), bars[at])
    for at, exam in enumerate((FOURTH, THIRD))
    for row, bars in HELD.items()
]


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
