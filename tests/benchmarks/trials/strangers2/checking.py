"""``check`` on the list: does it name what a column shows, and keep quiet on the rest?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trials import product
from trials.score import Count
from trials.strangers2.clean import CLEAN
from trials.strangers2.faults import FAULTS, Fault
from trials.strangers2.verifying import KIND, counted
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
    findings = (answer.document or {}).get("findings", [])
    said = [f"{one['severity']}: {one['code']}: {one['message']}" for one in findings]
    case: dict[str, Any] = {"task": task, "code": answer.code, "said": said}
    if answer.code not in (0, 1):
        case["said"] = [answer.told[-300:]]
    if kind == "clean":
        loud = [one for one in findings if one["severity"] in ("error", "warning")]
        false = bool(loud) or answer.code != 0
        return {FALSE: counted(false, case), f"{KIND}second clean: {name}": counted(false, None)}
    fault = _FAULTS[name]
    named = _named(fault, answer, findings)
    errors = [one for one in findings if one["severity"] == "error"]
    other = any(not fault.excused(f"{one['code']} {one['message']}") for one in errors)
    case["thread"] = fault.thread
    found = {
        NAMED: counted(named, case, keep=not named),
        OTHER: counted(other, case),
        f"{KIND}second check: {name}": counted(named, None),
    }
    return found | ({AGENTS: counted(named, None)} if fault.agent else {})


def _named(fault: Fault, answer: product.Answer, findings: list[dict[str, Any]]) -> bool:
    if answer.code == 3 and fault.refused:
        return fault.named_by(answer.told)
    return any(
        fault.named_by(f"{one['code']} {one['message']}")
        for one in findings
        if one["severity"] in ("error", "warning") or fault.mild
    )
