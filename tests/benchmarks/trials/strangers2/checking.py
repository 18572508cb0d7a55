"""``check`` on the list: does it name what a column shows, and keep quiet on the rest?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trials import product
from trials.score import Count
from trials.strangers.checking import Headings, judged
from trials.strangers2.clean import CLEAN
from trials.strangers2.faults import FAULTS
from trials.task import Task

NAMED = "unread: `check`, fault × strength: named"
AGENTS = "unread: … of those that concern turns, tools and versions, `check`"
OTHER = "unread: … an error of another name"
FALSE = "unread: `check`, clean batches with an error or warning"

_FAULTS = {fault.name: fault for fault in FAULTS}


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for fault in FAULTS:
            for at in range(len(fault.strengths)):
                yield Task("strangers", f"second/check/fault/{fault.name}/{at}", seed)
        for name in CLEAN:
            yield Task("strangers", f"second/check/clean/{name}", seed)


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    _, _, kind, name, *rest = task.name.split("/")
    if kind == "clean":
        return CLEAN[name](task.random()), ["check"]
    fault = _FAULTS[name]
    return fault.make(task.random(), fault.strengths[int(rest[0])]), ["check"]


def ask_one(task: Task) -> dict[str, Count]:
    made, words = records(task)
    by = ("--group-by", "uid") if "uid" in made[0] and isinstance(made[0]["uid"], str) else ()
    answer = product.ask(words[0], made, *by, "--limit", "0")
    _, _, kind, name, *_ = task.name.split("/")
    fault = None if kind == "clean" else _FAULTS[name]
    found = judged(task, answer, name, fault, Headings(NAMED, OTHER, FALSE, "second "))
    if fault is not None and fault.agent:
        found[AGENTS] = replace(found[NAMED], cases=[])
    return found
