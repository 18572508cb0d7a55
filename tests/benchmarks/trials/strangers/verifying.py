"""``verify`` on the list: does it name what a trainer got wrong, and nothing else?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from trials import product
from trials.score import Count, counted
from trials.simulate.policy import Random
from trials.strangers import denominators, judgements, objectives
from trials.strangers.batches import Drawn, Wish, drawn, expected
from trials.strangers.mistake import Mistake
from trials.task import Task

NAMED = "strangers: `verify`, loss and gradient recorded: the mistake is named"
MISLED = "strangers: … another one is named"
AGREES = "strangers: … it is called right"
ALONE = "strangers: `verify`, loss alone: the mistake is named"
GUESSED = "strangers: … another one is named, loss alone"
RIGHT = "strangers: `verify`: a right loss differs"
KIND = "kind: "
"""How rows of one kind of mistake begin; they are listed by ``--json`` alone."""

MISTAKES = {
    one.name: one for one in (*denominators.MISTAKES, *judgements.MISTAKES, *objectives.MISTAKES)
}
RIGHTS = {
    "any": Wish(),
    "tools": Wish(mask="tools"),
    "truncated": Wish(mask="cut", families=("trl", "paper")),
    "sequence": Wish(sequence=True, families=("trl",)),
    "gspo": Wish(sequence=True, families=("paper",), reductions=("response",), beta=False),
    "cispo": Wish(("trl",), ("items",), more=(("cispo", True), ("high", (1.2, 1.5)))),
    "delta": Wish(("trl",), more=(("delta", (1.3, 1.5, 4.0)),), move=0.5),
    "engine": Wish(("trl",), rollout=True, more=(("correction", ("token", "sequence")),)),
    "generation": Wish(("trl",), ("items",), steps=(2, 4), generation=(2, 0.5)),
    "close": Wish(rewards="close", judged=False),
}
"""Losses without a mistake."""

_SILENT = re.compile(
    r"not recogni|no (known )?cause|unknown|unexplained|nothing (known|tried)"
    r"|(constant|whole) factor",
    re.IGNORECASE,
)


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for mistake in MISTAKES.values():
            for at in range(len(mistake.strengths) or 1):
                yield Task("strangers", f"verify/both/{mistake.name}/{at}", seed)
                if mistake.value:
                    yield Task("strangers", f"verify/loss/{mistake.name}/{at}", seed)
        for name in RIGHTS:
            yield Task("strangers", f"verify/right/{name}", seed)


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    made, words, _ = _made(task)
    return made, ["verify", *words]


def ask_one(task: Task) -> dict[str, Count]:
    made, words, mistake = _made(task)
    if not made:
        return {}
    answer = product.ask("verify", made, *words)
    case = {"task": task, "code": answer.code}
    if mistake is None:
        return {RIGHT: counted(answer.code != 0, case | {"told": answer.told[-300:]})}
    both = task.name.split("/")[1] == "both"
    verdict, said = judged(answer, mistake)
    case |= {"verdict": verdict, "said": said, "thread": mistake.thread}
    found = {NAMED if both else ALONE: counted(verdict == "named", case, keep=verdict != "named")}
    found[MISLED if both else GUESSED] = counted(verdict == "misled", case)
    if both:
        found[AGREES] = counted(verdict == "agrees", case)
    kind = f"{KIND}verify, {'loss and gradient' if both else 'loss alone'}: {mistake.name}"
    return found | {kind: counted(verdict == "named", None)}


def judged(answer: product.Answer, mistake: Mistake) -> tuple[str, list[str]]:
    """ "named", "misled", "silent", "agrees" or "crashed"; and the causes that were given."""
    if answer.code not in (0, 1) or answer.document is None:
        return "crashed", [answer.told[-300:]]
    if answer.code == 0:
        return "agrees", []
    causes = given(answer.document)
    if any(mistake.named_by(cause) for cause in causes[:3]):
        return "named", causes
    return ("misled" if causes and not _SILENT.search(causes[0]) else "silent"), causes


def given(document: dict[str, Any]) -> list[str]:
    """The causes of the verdict; else of the first record that differs: the likeliest first."""
    if document.get("causes"):
        return list(document["causes"])
    for record in document.get("records", []):
        first = record.get("first")
        if not record.get("agrees", True) and first:
            causes = [first.get("cause"), *(first.get("causes") or [])]
            return list(dict.fromkeys(cause for cause in causes if cause))
    return []


def _made(task: Task) -> tuple[list[product.Record], tuple[str, ...], Mistake | None]:
    random = task.random()
    _, kind, *rest = task.name.split("/")
    count = 3 if random.random() < 1 / 3 else 1
    if kind == "right":
        batches = drawn(random, RIGHTS[rest[0]], count)
        for one in batches:
            one.record["expected"] = expected(one.case, one.record)
        return [one.record for one in batches], batches[0].words, None
    mistake = MISTAKES[rest[0]]
    strength = mistake.strengths[int(rest[1])] if mistake.strengths else None
    for _ in range(40):
        batches = drawn(random, mistake.wish, count)
        if _planted(random, batches, mistake, strength, alone=kind == "loss"):
            return [one.record for one in batches], batches[0].words, mistake
    return [], (), mistake


def _planted(
    random: Random, batches: list[Drawn], mistake: Mistake, strength: Any, *, alone: bool
) -> bool:
    """Writes what the wrong loss gave; whether the mistake shows in every batch."""
    digits = 4 if alone and random.random() < 1 / 3 else None
    for one in batches:
        right = expected(one.case, one.record)
        wrong = expected(mistake.planted(one.case, strength), one.record)
        slopes = [np.concatenate(made["loss_gradient"]) for made in (right, wrong)]
        apart = np.abs(slopes[1] - slopes[0]).max() / max(np.abs(slopes[0]).max(), 1e-12)
        moved = abs(wrong["loss"] - right["loss"])
        shown = moved > 2e-3 * max(abs(right["loss"]), 1e-3)
        if alone and not (shown and abs(wrong["loss"]) > 1e-4):
            return False
        if not alone and not (apart > 1e-2 or shown):
            return False
        if alone:
            del wrong["loss_gradient"]
            if digits and moved > 1e-3:
                wrong["loss"] = round(wrong["loss"], digits)
        one.record["expected"] = wrong
    return True
