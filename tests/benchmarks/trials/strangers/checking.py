"""``check`` on a list: does it name what a column shows, and keep quiet on the rest?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from trials import product
from trials.score import Count, Task, counted
from trials.strangers.mistake import Fault, kind, row
from trials.strangers3.exam import CLEAN, FAULTS

NAMED = "`check`, fault × strength: named"
AGENTS = "… of those that concern turns, tools and versions, `check`"
OTHER = "… an error of another name"
FALSE = "`check`, clean batches with an error or warning"
REAL = "`check`, real records with an error or warning"

_DATA = Path(__file__).parents[3] / "data"


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for fault in FAULTS.values():
            for at in range(len(fault.strengths)):
                yield Task("strangers", f"third/check/fault/{fault.name}/{at}", seed)
        for name in CLEAN:
            yield Task("strangers", f"third/check/clean/{name}", seed)
    for name in real():
        yield Task("strangers", f"third/check/real/{name}", first)


@cache
def real() -> dict[str, product.Record]:
    """Every record that a released framework computed, by file and id."""
    every = [
        (path.stem, orjson.loads(line))
        for path in sorted(_DATA.rglob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    return {f"{stem}:{record.get('id')}".replace("/", ":"): record for stem, record in every}


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    _, _, what, name, *rest = task.name.split("/")
    if what == "clean":
        made = CLEAN[name](task.random())
    elif what == "real":
        made = [real()[name]]
    else:
        fault = FAULTS[name]
        made = fault.records(task.random(), fault.strengths[int(rest[0])])
    return made, ["check"]


def ask_one(task: Task) -> dict[str, Count]:
    made, words = records(task)
    answer = product.ask(words[0], made, *words[1:], "--limit", "0")
    _, _, what, name, *_ = task.name.split("/")
    findings = (answer.document or {}).get("findings", [])
    said = [f"{one['severity']}: {one['code']}: {one['message']}" for one in findings]
    case: dict[str, Any] = {"task": task, "code": answer.code, "said": said}
    if answer.code not in (0, 1):
        case["said"] = [answer.told[-300:]]
    if what in ("clean", "real"):
        loud = [one for one in findings if one["severity"] in ("error", "warning")]
        false = bool(loud) or answer.code != 0
        answered = row(FALSE if what == "clean" else REAL)
        return {answered: counted(false, case), kind(what, name): counted(false, None)}
    fault = FAULTS[name]
    named = _named(fault, answer, findings)
    errors = [one for one in findings if one["severity"] == "error"]
    other = any(not fault.excused(f"{one['code']} {one['message']}") for one in errors)
    case["thread"] = fault.thread
    found = {
        row(NAMED): counted(named, case, keep=not named),
        row(OTHER): counted(other, case),
        kind("check", name): counted(named, None),
    }
    if fault.agent:
        found[row(AGENTS)] = replace(found[row(NAMED)], cases=[])
    return found


def _named(fault: Fault, answer: product.Answer, findings: list[dict[str, Any]]) -> bool:
    if answer.code == 3 and fault.refused:
        return fault.named_by(answer.told)
    return any(
        fault.named_by(f"{one['code']} {one['message']}")
        for one in findings
        if one["severity"] in ("error", "warning") or fault.mild
    )
