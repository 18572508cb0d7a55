"""``check`` on a list: does it name what a column shows, and keep quiet on the rest?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trials import product
from trials.score import Count, Task, counted
from trials.strangers.mistake import Exam, Fault

NAMED = "`check`, fault × strength: named"
AGENTS = "… of those that concern turns, tools and versions, `check`"
OTHER = "… an error of another name"
FALSE = "`check`, clean batches with an error or warning"


def tasks(exam: Exam, first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for fault in exam.faults:
            for at in range(len(fault.strengths)):
                yield Task("strangers", f"{exam.name}/check/fault/{fault.name}/{at}", seed)
        for name in exam.clean:
            yield Task("strangers", f"{exam.name}/check/clean/{name}", seed)


def records(exam: Exam, task: Task) -> tuple[list[product.Record], list[str]]:
    _, _, kind, name, *rest = task.name.split("/")
    if kind == "clean":
        made = exam.clean[name](task.random())
    else:
        fault = exam.fault(name)
        made = fault.records(task.random(), fault.strengths[int(rest[0])])
    by = ["--group-by", "uid"] if "uid" in made[0] and isinstance(made[0]["uid"], str) else []
    return made, ["check", *by]


def ask_one(exam: Exam, task: Task) -> dict[str, Count]:
    made, words = records(exam, task)
    answer = product.ask(words[0], made, *words[1:], "--limit", "0")
    _, _, kind, name, *_ = task.name.split("/")
    findings = (answer.document or {}).get("findings", [])
    said = [f"{one['severity']}: {one['code']}: {one['message']}" for one in findings]
    case: dict[str, Any] = {"task": task, "code": answer.code, "said": said}
    if answer.code not in (0, 1):
        case["said"] = [answer.told[-300:]]
    if kind == "clean":
        loud = [one for one in findings if one["severity"] in ("error", "warning")]
        false = bool(loud) or answer.code != 0
        kind = exam.kind("clean", name)
        return {exam.row(FALSE): counted(false, case), kind: counted(false, None)}
    fault = exam.fault(name)
    named = _named(fault, answer, findings)
    errors = [one for one in findings if one["severity"] == "error"]
    other = any(not fault.excused(f"{one['code']} {one['message']}") for one in errors)
    case["thread"] = fault.thread
    found = {
        exam.row(NAMED): counted(named, case, keep=not named),
        exam.row(OTHER): counted(other, case),
        exam.kind("check", name): counted(named, None),
    }
    if fault.agent:
        found[exam.row(AGENTS)] = replace(found[exam.row(NAMED)], cases=[])
    return found


def _named(fault: Fault, answer: product.Answer, findings: list[dict[str, Any]]) -> bool:
    if answer.code == 3 and fault.refused:
        return fault.named_by(answer.told)
    return any(
        fault.named_by(f"{one['code']} {one['message']}")
        for one in findings
        if one["severity"] in ("error", "warning") or fault.mild
    )
