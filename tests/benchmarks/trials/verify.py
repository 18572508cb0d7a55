"""``grpo verify``: does it name the cause, where an implementation of TRL's loss is wrong?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from trials.product import Answer, Record, ask
from trials.score import Count, Task, counted
from trials.strangers.world import Random
from trials.trl import real, simulated
from trials.wrong.catalogue import EXPECTATIONS, MISTAKES
from trials.wrong.mistake import Mistake, mistaken

Counts = dict[str, Count]

RIGHT = "verify: names the right cause (loss and gradient dumped)"
UNKNOWN = "verify: the cause is not recognised"
MISLEADING = "verify: another cause is named"
UNSEEN = "verify: a wrong implementation agrees"
STAGE = "verify: names the stage"
FALSE = "verify: a right implementation differs"

PER_RIGHT = 8
"""Right implementations, in terms of the records of each mistake."""
_TRIES = 80
CAUSES = re.compile(r"cause|culprit|why|explan|reason|remark", re.IGNORECASE)
_NOTHING = re.compile(r"^\s*$|not recogni[sz]ed|no cause|unknown cause", re.IGNORECASE)
_PLAIN = re.compile(r"(constant|whole|plain) factor", re.IGNORECASE)
"""What is true wherever it is said, and no cause: it misleads nobody."""


def tasks(first: int, seeds: int) -> Iterator[Task]:
    """Every mistake, every other thing to expect, and right implementations."""
    for mistake in MISTAKES:
        for seed in range(first, first + seeds):
            yield Task("verify", f"wrong/{mistake.name}", seed)
    for name in EXPECTATIONS:
        for seed in range(first, first + seeds):
            yield Task("verify", f"expected/{name}", seed)
    for seed in range(first, first + PER_RIGHT * seeds):
        yield Task("verify", "right/simulated", seed)
    for at in range(len(real())):
        yield Task("verify", f"right/real {at}", first)


def records(task: Task) -> tuple[list[Record], list[str]]:
    """What is asked about, and the command's words."""
    what, _, name = task.name.partition("/")
    random = task.random()
    if what == "right":
        at = name.removeprefix("real ")
        found = real()[int(at)] if at.isdigit() else _some(random, seed=task.seed)
        return [found], ["verify"]
    if what == "expected":
        return [EXPECTATIONS[name].made(_some(random, seed=0), random)], ["verify"]
    made = _mistaken(_by_name()[name], task)
    return ([] if made is None else [made]), ["verify"]


def _some(random: Random, *, seed: int) -> Record:
    return simulated(random, rewarded=bool(seed % 2))


def _mistaken(mistake: Mistake, task: Task) -> Record | None:
    """A real record for even seeds, else a simulated one, in which the mistake can be seen."""
    random = task.random()
    for _ in range(_TRIES if task.seed % 2 or mistake.rewarded else len(real())):
        if task.seed % 2 or mistake.rewarded:
            record = simulated(random, rewarded=mistake.rewarded)
        else:
            record = real()[int(random.integers(len(real())))]
        made = mistaken(mistake, record, random)
        if made is not None:
            return made
    return None


def ask_one(task: Task) -> Counts:
    """The counts of one question."""
    made, _ = records(task)
    if not made:
        return {}
    answer = ask("verify", made)
    what, _, name = task.name.partition("/")
    if what == "wrong":
        return _judge(_by_name()[name], task, answer)
    if what == "right":
        return {FALSE: counted(answer.code != 0, _case(task, answer))}
    good = EXPECTATIONS[name].good(answer)
    return {f"verify: {name}": counted(good, _case(task, answer), keep=not good)}


def _judge(mistake: Mistake, task: Task, answer: Answer) -> Counts:
    row = _row(answer)
    said = [text for text in texts(row, CAUSES) if not _NOTHING.search(text)]
    differs = answer.code == 1
    right = differs and any(re.search(mistake.right, text, re.IGNORECASE) for text in said)
    case = _case(task, answer)
    claims = [text for text in said if not _PLAIN.search(text)]
    stages = texts(row, re.compile("stage|culprit"))
    staged = any(re.search(mistake.stage, text, re.IGNORECASE) for text in stages)
    return {
        RIGHT: counted(right, None),
        f"{RIGHT} · {mistake.name}": counted(right, None),
        UNKNOWN: counted(differs and not claims and not right, case),
        MISLEADING: counted(differs and bool(claims) and not right, case),
        UNSEEN: counted(not differs, case),
        STAGE: counted(differs and staged, None),
    }


def _row(answer: Answer) -> dict[str, Any]:
    rows = (answer.document or {}).get("records") or [{}]
    return rows[0]


def texts(value: Any, wanted: re.Pattern[str], *, inside: bool = False) -> list[str]:
    """The strings under keys that are wanted, wherever they stand."""
    if isinstance(value, dict):
        return [
            text
            for key, one in value.items()
            for text in texts(one, wanted, inside=inside or bool(wanted.search(key)))
        ]
    if isinstance(value, list):
        return [text for one in value for text in texts(one, wanted, inside=inside)]
    return [value] if inside and isinstance(value, str) else []


def _case(task: Task, answer: Answer) -> dict[str, Any]:
    row = _row(answer)
    causes = list(dict.fromkeys(texts(row, CAUSES)))
    told = answer.told.strip()[-200:] if answer.code not in (0, 1) else ""
    return {"task": task, "exit": answer.code, "as": row.get("variant"), "said": [*causes, told]}


@cache
def _by_name() -> dict[str, Mistake]:
    return {mistake.name: mistake for mistake in MISTAKES}
