"""The later list as a part of the experiment: ``verify``, ``check`` and ``match``.

Every entry was written, with what an answer must say of it, from fixes and reports of 2025 and 2026
by somebody who had read neither rules nor causes, before any was run.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from trials import product
from trials.score import Count
from trials.strangers2 import checking, matching, verifying
from trials.task import Task

_MODULES = {"verify": verifying, "check": checking, "match": matching}


def tasks(first: int, seeds: int) -> Iterator[Task]:
    yield from verifying.tasks(first, seeds)
    yield from checking.tasks(first, seeds)
    yield from matching.tasks(first, seeds)


def _module(task: Task) -> ModuleType:
    return _MODULES[task.name.split("/")[1]]


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    found: tuple[list[product.Record], list[str]] = _module(task).records(task)
    return found


def ask_one(task: Task) -> dict[str, Count]:
    found: dict[str, Count] = _module(task).ask_one(task)
    return found
