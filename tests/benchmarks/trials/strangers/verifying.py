"""``verify`` on a list: does it name what a trainer got wrong, and nothing else?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from trials import product
from trials.score import Count, Task, counted
from trials.strangers.mistake import Mistake, kind, row
from trials.strangers.settings import Drawn, asked, expected
from trials.strangers.world import Random
from trials.strangers3.exam import MISTAKES, RIGHTS

NAMED = "`verify`, loss and gradient recorded: the mistake is named"
AGENTS = "… of those that concern turns, tools and versions"
PLACED = "… its stage is named"
MISLED = "… another one is named"
AGREES = "… it is called right"
ALONE = "`verify`, loss alone: the mistake is named"
GUESSED = "… another one is named, loss alone"
RIGHT = "`verify`: a right loss differs"
LOGGED = "`verify`: a right loss, with the digits that are logged, differs"

_SILENT = re.compile(
    r"not recogni|no (known )?cause|unknown|unexplained|nothing (known|tried)"
    r"|(constant|whole|integer) factor|only the logged loss differs",
    re.IGNORECASE,
)


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for mistake in MISTAKES.values():
            for at in range(len(mistake.strengths) or 1):
                yield Task("strangers", f"third/verify/both/{mistake.name}/{at}", seed)
                if mistake.value:
                    yield Task("strangers", f"third/verify/loss/{mistake.name}/{at}", seed)
        for name in RIGHTS:
            yield Task("strangers", f"third/verify/right/{name}", seed)


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    made, words, _ = _made(task)
    return made, ["verify", *words]


def ask_one(task: Task) -> dict[str, Count]:
    made, words, mistake = _made(task)
    if not made:
        return {}
    answer = product.ask("verify", made, *words)
    case: dict[str, Any] = {"task": task, "code": answer.code}
    if mistake is None:
        wanted = LOGGED if "/logged" in task.name else RIGHT
        return {row(wanted): counted(answer.code != 0, case | {"told": answer.told[-300:]})}
    both = task.name.split("/")[2] == "both"
    verdict, causes = judged(answer, mistake)
    case |= {"verdict": verdict, "said": causes, "thread": mistake.thread}
    named = verdict == "named"
    found = {
        NAMED if both else ALONE: counted(named, case, keep=not named),
        MISLED if both else GUESSED: counted(verdict == "misled", case),
    }
    if both:
        found[AGREES] = counted(verdict == "agrees", case)
        if mistake.agent:
            found[AGENTS] = counted(named, None)
        if mistake.stage:
            found[PLACED] = counted(named or placed(answer, mistake), None)
    own = kind("verify, loss and gradient" if both else "verify, loss alone", mistake.name)
    return {row(answered): count for answered, count in found.items()} | {own: counted(named, None)}


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


def placed(answer: product.Answer, mistake: Mistake) -> bool:
    """Whether the answer names the stage: in a cause, or for the first difference."""
    document = answer.document or {}
    texts = given(document)[:3]
    first = next((one["first"] for one in document.get("records", []) if one.get("first")), {})
    texts += [first.get("stage") or "", first.get("pattern") or "", *(first.get("stages") or [])]
    return any(mistake.places(text) for text in texts)


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


Made = tuple[list[product.Record], tuple[str, ...], Mistake | None]


def _made(task: Task) -> Made:
    random = task.random()
    _, _, what, *rest = task.name.split("/")
    count = 3 if random.random() < 1 / 4 else 1
    if what == "right":
        batches = asked(random, RIGHTS[rest[0]], count)
        for one in batches:
            one.record["expected"] = wanted = expected(one.case, one.record)
            if rest[0].startswith("logged"):
                one.record["expected"] = {"loss": logged(one, wanted["loss"])}
        return [one.record for one in batches], batches[0].words, None
    mistake = MISTAKES[rest[0]]
    strength = mistake.strengths[int(rest[1])] if mistake.strengths else None
    for _ in range(40):
        batches = asked(random, mistake.wish, count)
        if _planted(random, batches, mistake, strength, alone=what == "loss"):
            return [one.record for one in batches], batches[0].words, mistake
    return [], (), mistake


def _planted(
    random: Random, batches: list[Drawn], mistake: Mistake, strength: Any, *, alone: bool
) -> bool:
    """Writes what the wrong loss gave; whether the mistake shows in every batch."""
    digits = alone and bool(random.random() < 0.5)
    for one in batches:
        right = expected(one.case, one.record)
        wrong = expected(mistake.planted(one.case, strength), one.record)
        slopes = [np.concatenate(made["loss_gradient"]) for made in (right, wrong)]
        turned = np.abs(slopes[1] - slopes[0]).max() / max(np.abs(slopes[0]).max(), 1e-12)
        moved = abs(wrong["loss"] - right["loss"])
        shown = moved > 3e-3 * max(abs(right["loss"]), 1e-3)
        if alone and not (shown and abs(wrong["loss"]) > 1e-4):
            return False
        if not alone and not (turned > 2e-2 or shown):
            return False
        if alone:
            del wrong["loss_gradient"]
        if digits and moved > 2e-3:
            wrong["loss"] = logged(one, wrong["loss"])
        one.record["expected"] = wrong
    return True


def logged(one: Drawn, loss: float) -> float:
    """The digits that a framework logs: TRL four places, others six digits."""
    return round(loss, 4) if one.case.recipe.keys == "trl" else float(f"{loss:.6g}")
