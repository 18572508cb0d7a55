"""``check`` on the list: does it name what a column shows, and keep quiet on the rest?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from trials import product
from trials.score import Count, counted
from trials.strangers.clean import CLEAN
from trials.strangers.faults import FAULTS, Fault
from trials.strangers.verifying import KIND
from trials.task import Task

NAMED = "strangers: `check`, fault × strength: named"
OTHER = "strangers: … an error of another name"
FALSE = "strangers: `check`, clean batches with an error or warning"


class Headings(NamedTuple):
    """Under which names the answers of a list are counted."""

    named: str
    other: str
    false: str
    prefix: str = ""


HEADINGS = Headings(NAMED, OTHER, FALSE)
_FAULTS = {fault.name: fault for fault in FAULTS}


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for fault in FAULTS:
            for at in range(len(fault.strengths)):
                yield Task("strangers", f"check/fault/{fault.name}/{at}", seed)
        for name in CLEAN:
            yield Task("strangers", f"check/clean/{name}", seed)


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    _, kind, name, *rest = task.name.split("/")
    random = task.random()
    if kind == "clean":
        return CLEAN[name](random), ["check"]
    fault = _FAULTS[name]
    return fault.make(random, fault.strengths[int(rest[0])]), ["check"]


def ask_one(task: Task) -> dict[str, Count]:
    made, words = records(task)
    answer = product.ask(words[0], made, "--limit", "0")
    _, kind, name, *_ = task.name.split("/")
    fault = None if kind == "clean" else _FAULTS[name]
    return judged(task, answer, name, fault, HEADINGS)


def judged(
    task: Task, answer: product.Answer, name: str, fault: Fault | None, headings: Headings
) -> dict[str, Count]:
    """What an answer to a fault, or to a clean batch (None), counts for."""
    findings = (answer.document or {}).get("findings", [])
    said = [f"{one['severity']}: {one['code']}: {one['message']}" for one in findings]
    case: dict[str, Any] = {"task": task, "code": answer.code, "said": said}
    if answer.code not in (0, 1):
        case["said"] = [answer.told[-300:]]
    if fault is None:
        loud = [one for one in findings if one["severity"] in ("error", "warning")]
        false = bool(loud) or answer.code != 0
        kind = f"{KIND}{headings.prefix}clean: {name}"
        return {headings.false: counted(false, case), kind: counted(false, None)}
    named = _named(fault, answer, findings)
    errors = [one for one in findings if one["severity"] == "error"]
    other = any(not fault.excused(f"{one['code']} {one['message']}") for one in errors)
    case["thread"] = fault.thread
    return {
        headings.named: counted(named, case, keep=not named),
        headings.other: counted(other, case),
        f"{KIND}{headings.prefix}check: {name}": counted(named, None),
    }


def _named(fault: Fault, answer: product.Answer, findings: list[dict[str, Any]]) -> bool:
    if answer.code == 3 and fault.refused:
        return fault.named_by(answer.told)
    return any(
        fault.named_by(f"{one['code']} {one['message']}")
        for one in findings
        if one["severity"] in ("error", "warning") or fault.mild
    )
