"""``verify`` on the list: does it name what a trainer got wrong, and nothing else?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trials import product
from trials.score import Count, counted
from trials.strangers.verifying import judged
from trials.strangers2 import agents, single
from trials.strangers2.mistake import Mistake
from trials.strangers2.settings import Drawn, Wish, asked, expected
from trials.task import Task

NAMED = "unread: `verify`, loss and gradient recorded: the mistake is named"
AGENTS = "unread: … of those that concern turns, tools and versions"
MISLED = "unread: … another one is named"
AGREES = "unread: … it is called right"
ALONE = "unread: `verify`, loss alone: the mistake is named"
GUESSED = "unread: … another one is named, loss alone"
RIGHT = "unread: `verify`: a right loss differs"
KIND = "kind: "

MISTAKES = {one.name: one for one in (*single.MISTAKES, *agents.MISTAKES)}
RIGHTS = {
    "any": Wish(),
    "advantages given": Wish(given=True),
    "truncated": Wish(("paper", "trl"), masked="cut"),
    "rows of turns": Wish(("rows",)),
    "several versions": Wish(("span",), columns=("versions", "turn_ids"), spec={"versions": 3}),
    **{
        f"as for: {name}": MISTAKES[name].wish
        for name in (
            "engine's weights not truncated",
            "sequence's weight a mean",
            "rejected tokens in the denominator",
            "engine's weight with a gradient",
            "off-policy mask by the old policy",
            "entropy of truncated rows",
            "LUSPO over the padded width",
            "reward functions not weighted",
            "lone response without an advantage",
            "whitened by halves of each row",
            "discount by the absolute position",
            "GAE steps over tools' tokens",
            "KL of tools' tokens in the returns",
            "a ratio for each turn",
            "returns run on into another trajectory",
        )
    },
}
"""Losses without a mistake."""


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for mistake in MISTAKES.values():
            for at in range(len(mistake.strengths) or 1):
                yield Task("strangers", f"second/verify/both/{mistake.name}/{at}", seed)
                if mistake.value:
                    yield Task("strangers", f"second/verify/loss/{mistake.name}/{at}", seed)
        for name in RIGHTS:
            yield Task("strangers", f"second/verify/right/{name}", seed)


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
        return {RIGHT: counted(answer.code != 0, case | {"told": answer.told[-300:]})}
    both = task.name.split("/")[2] == "both"
    verdict, said = judged(answer, mistake)
    case |= {"verdict": verdict, "said": said, "thread": mistake.thread}
    named = verdict == "named"
    kind = f"{KIND}second verify, {'loss and gradient' if both else 'loss alone'}: {mistake.name}"
    found = {
        NAMED if both else ALONE: counted(named, case, keep=not named),
        MISLED if both else GUESSED: counted(verdict == "misled", case),
        kind: counted(named, None),
    }
    if both:
        found[AGREES] = counted(verdict == "agrees", case)
        if mistake.agent:
            found[AGENTS] = counted(named, None)
    return found


def _made(task: Task) -> tuple[list[product.Record], tuple[str, ...], Mistake | None]:
    random = task.random()
    _, _, kind, *rest = task.name.split("/")
    count = 3 if random.random() < 1 / 4 else 1
    if kind == "right":
        batches = asked(random, RIGHTS[rest[0]], count)
        for one in batches:
            one.record["expected"] = expected(one.case, one.record)
        return [one.record for one in batches], batches[0].words, None
    mistake = MISTAKES[rest[0]]
    strength = mistake.strengths[int(rest[1])] if mistake.strengths else None
    for _ in range(40):
        batches = asked(random, mistake.wish, count)
        if "tied groups" in mistake.name:
            batches = [_tied(one) for one in batches]
        if _planted(batches, mistake, strength, alone=kind == "loss"):
            return [one.record for one in batches], batches[0].words, mistake
    return [], (), mistake


def _tied(one: Drawn) -> Drawn:
    """The first group's rewards are all the same."""
    rewards = one.case.rows.rewards.copy()
    own = one.case.rows.groups == 0
    rewards[own] = rewards[own].max()
    one.record["rewards"] = rewards.tolist()
    return Drawn(one.record, one.case.of(rewards=rewards))


def _planted(batches: list[Drawn], mistake: Mistake, strength: Any, *, alone: bool) -> bool:
    """Writes what the wrong loss gave; whether the mistake shows in every batch."""
    for one in batches:
        right = expected(one.case, one.record)
        wrong = expected(mistake.planted(one.case, strength), one.record)
        slopes = [np.concatenate(made["loss_gradient"]) for made in (right, wrong)]
        apart = np.abs(slopes[1] - slopes[0]).max() / max(np.abs(slopes[0]).max(), 1e-12)
        moved = abs(wrong["loss"] - right["loss"])
        shown = moved > 3e-3 * max(abs(right["loss"]), 1e-3)
        if alone and not (shown and abs(wrong["loss"]) > 1e-4):
            return False
        if not alone and not (apart > 2e-2 or shown):
            return False
        if alone:
            del wrong["loss_gradient"]
        one.record["expected"] = wrong
    return True
