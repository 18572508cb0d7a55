"""Two lists of strangers' mistakes as a section of the experiment.

Every entry was written from a fix or a report of 2025 and 2026 before any cause or rule was built
for it, by somebody who had not read those that there were. Whoever builds has seen the first list
since; the later one (``../strangers2``; its questions begin with "second/") is unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from trials import product
from trials.score import Count
from trials.strangers import checking, matching, verifying
from trials.strangers2 import section as second
from trials.task import Task

_MODULES = {"verify": verifying, "check": checking, "match": matching, "second": second}


def tasks(first: int, seeds: int) -> Iterator[Task]:
    yield from verifying.tasks(first, seeds)
    yield from checking.tasks(first, seeds)
    yield from matching.tasks(first, seeds)
    yield from second.tasks(first, seeds)


def _module(task: Task) -> ModuleType:
    return _MODULES[task.name.partition("/")[0]]


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    found: tuple[list[product.Record], list[str]] = _module(task).records(task)
    return found


def ask_one(task: Task) -> dict[str, Count]:
    found: dict[str, Count] = _module(task).ask_one(task)
    return found
