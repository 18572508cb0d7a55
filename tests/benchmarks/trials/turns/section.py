"""``check`` and ``verify`` on agents' batches: do they name faults, and nothing else?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trials.check import KINDS as SINGLE
from trials.check import findings
from trials.kinds import NAMES as SINGLE_NAMES
from trials.kinds import dumped as single
from trials.product import Answer, Record, ask
from trials.score import Count, Task, counted
from trials.turns.faults import FAULTS, Fault, planted
from trials.turns.kinds import KINDS, NAMES, dumped
from trials.turns.wrong import WRONG, mistaken
from trials.verify import CAUSES, texts

Counts = dict[str, Count]

NAMED = "turns: faults named"
OTHER = "turns: another fault named instead"
FALSE = "turns: false errors or warnings on clean batches of agents"
SINGLE_FALSE = "turns: findings on turns in clean batches of one turn"

CAUSE = "turns: causes named (loss and gradient dumped)"
MISLED = "turns: another cause named instead"
DIFFERS = "turns: a right implementation differs"

CODES = {code for fault in FAULTS for code in fault.codes}
PER_KIND = 2
"""Clean batches of each kind, in terms of the batches of each fault."""


def tasks(first: int, seeds: int) -> Iterator[Task]:
    """Clean batches of agents and of single turns, and every fault at every strength."""
    for seed in range(first, first + PER_KIND * seeds):
        for kind in KINDS:
            yield Task("turns", f"clean/{kind.name}", seed)
        for other in SINGLE:
            yield Task("turns", f"single/{other.name}", seed)
    for number, fault in enumerate(FAULTS):
        for at in range(len(fault.strengths)):
            for seed in range(first, first + seeds):
                yield Task("turns", f"fault/{number}/{at}", seed)
    for number in range(len(WRONG)):
        for seed in range(first, first + seeds):
            yield Task("turns", f"wrong/{number}", seed)
            yield Task("turns", f"right/{number}", seed)


def records(task: Task) -> tuple[list[Record], list[str]]:
    """What is asked about, and the command's words."""
    what, _, name = task.name.partition("/")
    if what == "clean":
        return dumped(NAMES[name], task.random(), task.name), ["check"]
    if what == "single":
        return single(SINGLE_NAMES[name], task.random(), task.name), ["check"]
    if what in ("wrong", "right"):
        wrong = WRONG[int(name)]
        kinds = wrong.tried_on
        kind = kinds[task.seed % len(kinds)]
        change = wrong if what == "wrong" else None
        return [mistaken(change, kind, task.random(), task.name)], ["verify"]
    fault, strength, kind = _fault(task)
    return planted(fault, strength, kind, task.random(), task.name), ["check"]


def ask_one(task: Task) -> Counts:
    """The counts of one question."""
    made, words = records(task)
    answer = ask(words[0], made)
    if words == ["verify"]:
        return _judge_cause(task, answer)
    found = findings(answer)
    loud = [one for one in found if one["severity"] in ("error", "warning")]
    what, _, name = task.name.partition("/")
    said = [f"{one['code']} ({one['severity']}): {one['message']}" for one in found]
    case: dict[str, Any] = {"task": task, "said": said[:4]}
    if what == "clean":
        return _counted((FALSE, f"{FALSE} · {name}"), bool(loud), case if loud else None)
    if what == "single":
        hit = any(one["code"] in CODES for one in found)
        return _counted((SINGLE_FALSE,), hit, case if hit else None)
    fault, strength, kind = _fault(task)
    named = any(one["code"] in fault.codes for one in loud)
    case["planted"] = f"{fault.name}, {strength!r}, in {kind}"
    detail = f"{NAMED} · {fault.name} {strength!r}"
    if fault.sure is not None and strength not in fault.sure:
        return _counted((f"{detail} (weak)",), named, None)
    counts = _counted((NAMED, detail), named, None if named else case)
    misled = bool(loud) and not named
    return counts | _counted((OTHER,), misled, case if misled else None)


def _judge_cause(task: Task, answer: Answer) -> Counts:
    what, _, number = task.name.partition("/")
    said = texts((answer.document or {}).get("records", [{}]), CAUSES)
    case: dict[str, Any] = {"task": task, "said": [*said, answer.told[-200:]][:4]}
    if what == "right":
        return _counted((DIFFERS,), answer.code != 0, case if answer.code else None)
    wrong = WRONG[int(number)]
    named = any(re.search(wrong.said, text) for text in said)
    counts = _counted((CAUSE, f"{CAUSE} · {wrong.name}"), named, None if named else case)
    misled = bool(said) and not named
    return counts | _counted((MISLED,), misled, case if misled else None)


def _counted(names: tuple[str, ...], hit: bool, case: dict[str, Any] | None) -> Counts:
    return {name: counted(hit, None if at else case, keep=True) for at, name in enumerate(names)}


def _fault(task: Task) -> tuple[Fault, Any, str]:
    _, number, at = task.name.split("/")
    fault = FAULTS[int(number)]
    return fault, fault.strengths[int(at)], fault.kinds[task.seed % len(fault.kinds)]
