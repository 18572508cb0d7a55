"""``grpo check``: is it silent on clean batches, and does it name what was planted?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from trials.faults import FAULTS, Fault, planted
from trials.kinds import KINDS, NAMES, dumped
from trials.product import Answer, Record, ask
from trials.score import Count, Task, counted

Counts = dict[str, Count]

CLEAN = "check: false errors or warnings on clean batches"
REAL = "check: false errors or warnings on real records"
FOUND = "check: faults named"
ELSE = "check: something else blamed too"

ROWS = {
    "temperature": "check: temperature on one side, T ≤ 0.9 or ≥ 1.1",
    "old": "check: old column zero-filled, foreign or random, no rollout column",
}
"""Rows that are to be reached, by the first word of the faults that they count."""

_DATA = Path(__file__).parents[2] / "data"
PER_KIND = 4
"""Clean batches of each kind, in terms of the batches of each fault."""


def tasks(first: int, seeds: int) -> Iterator[Task]:
    """Clean batches of every kind, real records, and every fault at every strength."""
    for kind in KINDS:
        for seed in range(first, first + PER_KIND * seeds):
            yield Task("check", f"clean/{kind.name}", seed)
    for name in _real():
        yield Task("check", f"real/{name}", first)
    for fault in FAULTS:
        for at in range(len(fault.strengths)):
            for seed in range(first, first + seeds):
                yield Task("check", f"fault/{fault.name}/{at}", seed)


def records(task: Task) -> tuple[list[Record], list[str]]:
    """What is asked about, and the command's words."""
    what, _, name = task.name.partition("/")
    if what == "clean":
        return dumped(NAMES[name], task.random(), task.name), ["check"]
    if what == "real":
        return [_real()[name]], ["check"]
    fault, strength, kind = _fault(task)
    return planted(fault, strength, kind, task.random()), ["check"]


def ask_one(task: Task) -> Counts:
    """The counts of one question."""
    made, words = records(task)
    answer = ask(words[0], made)
    if task.name.startswith("fault/"):
        return _judge_fault(task, answer)
    return _judge_clean(task, answer)


def _judge_clean(task: Task, answer: Answer) -> Counts:
    loud = bool(_loud(answer))
    what, _, name = task.name.partition("/")
    row = CLEAN if what == "clean" else REAL
    return {
        row: counted(loud, _case(task, answer)),
        f"{row} · {name if what == 'clean' else 'each'}": counted(loud, None),
    }


def _judge_fault(task: Task, answer: Answer) -> Counts:
    fault, strength, kind = _fault(task)
    pattern = re.compile(fault.named, re.IGNORECASE)
    severe = findings(answer) if fault.any_severity else _loud(answer)
    found = [one for one in severe if pattern.search(f"{one['code']}: {one['message']}")]
    others = [one for one in _loud(answer) if one not in found]
    rows = [f"{FOUND} (weak) · {fault.name} {strength}"]
    if fault.counted(strength):
        rows = [f"{FOUND} · {fault.name}", FOUND]
        rows += [row for word, row in ROWS.items() if fault.name.startswith(word)]
    case = _case(task, answer) | {"strength": repr(strength), "kind": kind}
    counts = {row: counted(bool(found), case, keep=row == FOUND and not found) for row in rows}
    return counts | {ELSE: counted(bool(others), None)}


def _case(task: Task, answer: Answer) -> dict[str, Any]:
    said = [f"{one['code']} ({one['severity']}): {one['message']}" for one in findings(answer)]
    told = [answer.told.strip()[-200:]] if answer.code not in (0, 1) else []
    return {"task": task, "exit": answer.code, "said": (told + said)[:4]}


def findings(answer: Answer) -> list[dict[str, Any]]:
    """All findings; a refusal to read the records is one too, since it is loud enough."""
    if answer.document is None or "findings" not in answer.document:
        return [{"code": f"exit {answer.code}", "severity": "error", "message": answer.told}]
    return answer.document["findings"]


def _loud(answer: Answer) -> list[dict[str, Any]]:
    return [one for one in findings(answer) if one["severity"] in ("error", "warning")]


def _fault(task: Task) -> tuple[Fault, Any, str]:
    _, name, at = task.name.split("/")
    fault = _by_name()[name]
    return fault, fault.strengths[int(at)], fault.kinds[task.seed % len(fault.kinds)]


@cache
def _by_name() -> dict[str, Fault]:
    return {fault.name: fault for fault in FAULTS}


@cache
def _real() -> dict[str, Record]:
    """Every record that a released framework computed, by file and id."""
    found = {}
    for path in sorted(_DATA.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            record = orjson.loads(line)
            found[f"{path.stem}:{record.get('id')}"] = record
    return found
