"""Faults of real issue threads: does the command that one would run name them?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trials.faults.samples import THREADS, Thread
from trials.product import Answer, Record, ask
from trials.score import Count
from trials.task import Task
from trials.verify import CAUSES, texts

Counts = dict[str, Count]

NAMED = "faults of real issue threads that are named"
ENOUGH = 0.9
"""The share of its samples in which a thread's fault has to be named."""

_BY_NAME = {thread.name: thread for thread in THREADS}


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for thread in THREADS:
        for seed in range(first, first + seeds):
            yield Task("threads", thread.name, seed)


def records(task: Task) -> tuple[list[Record], list[str]]:
    """What is asked about, and the command's words."""
    thread = _BY_NAME[task.name]
    return thread.made(task.random()), [thread.command]


def ask_one(task: Task) -> Counts:
    thread = _BY_NAME[task.name]
    answer = ask(thread.command, thread.made(task.random()))
    said = _said(answer)
    named = any(re.search(thread.named, text, re.IGNORECASE) for text in said)
    count = Count()
    case: dict[str, Any] = {"task": task, "exit": answer.code, "said": said[:5]}
    count.add(named, None if named else case)
    return {_row(thread): count}


def summary(counts: Counts) -> Counts:
    """How many of the threads are named, in nearly all of their samples."""
    asked = [counts[_row(thread)] for thread in THREADS if _row(thread) in counts]
    if not asked:
        return {}
    return {NAMED: Count(sum(one.share >= ENOUGH for one in asked), len(asked))}


def _row(thread: Thread) -> str:
    return f"thread · {thread.name}: {thread.about}"


def _said(answer: Answer) -> list[str]:
    """What findings say (their advice aside), or what causes a verdict names."""
    document = answer.document or {}
    found = [f"{one['code']}: {one['message']}" for one in document.get("findings", [])]
    return found + [text for text in texts(document.get("records", []), CAUSES) if text]
