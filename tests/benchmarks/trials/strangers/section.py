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
from trials.strangers.mistake import row

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

GOALS = [(row(answer), bar) for answer, bar in HELD.items()]


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for module in _MODULES.values():
        yield from module.tasks(first, seeds)


def _module(task: Task) -> ModuleType:
    return _MODULES[task.name.split("/")[1]]


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    found: tuple[list[product.Record], list[str]] = _module(task).records(task)
    return found


def ask_one(task: Task) -> dict[str, Count]:
    found: dict[str, Count] = _module(task).ask_one(task)
    return found
