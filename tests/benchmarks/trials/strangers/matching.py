"""``match`` on the losses of the list, by a batch that it never saw.

A convention that ``match`` puts first is right where its printed command gives, on another batch of
the same run, the loss that the trainer computed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trials import product
from trials.score import Count, counted
from trials.strangers.batches import Drawn, Wish, drawn
from trials.strangers.plain import Case, evaluated
from trials.task import Task

FIRST = "strangers: `match`, the record's settings known, 4 digits: the truth is first"
WRONG = "strangers: … one convention is named and wrong"
OPEN = "strangers: `match`, ε and β unknown, 8 digits: the truth is first"
OPEN_WRONG = "strangers: … one convention is named and wrong, ε and β unknown"

_LOSSES = {
    "trl": Wish(("trl",)),
    "trl with tools": Wish(("trl",), mask="tools"),
    "trl sequence": Wish(("trl",), sequence=True),
    "verl": Wish(("verl",)),
    "paper": Wish(("paper",), judged=False),
    "paper with a penalty": Wish(("paper",), ("response",), beta=True),
}
_HIDDEN = ("epsilon_low", "epsilon_high", "beta")
_NEAR = 1e-3


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for name in _LOSSES:
            for how in ("known", "open"):
                yield Task("strangers", f"match/{how}/{name}", seed)


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    asked, _, text = _made(task)
    return [asked.record], ["match", "--loss", text]


def ask_one(task: Task) -> dict[str, Count]:
    asked, other, text = _made(task)
    how = task.name.split("/")[1]
    answer = product.run("match", product.place([asked.record]), "--loss", text)
    matches = (answer.document or {}).get("matches", [])
    path = product.place([other.record], "probe")
    wanted = float(evaluated(other.case)[0])
    values = [product.printed_value(one["command"], path) for one in matches[:8]]
    right = [value is not None and _near(value, wanted) for value in values]
    alike = [abs(one["value"] - matches[0]["value"]) <= 1e-9 for one in matches[:8]]
    first = any(hit and same for hit, same in zip(right, alike, strict=True))
    wrong = len(matches) == 1 and answer.code == 0 and not first
    case = {"task": task, "code": answer.code, "truth": str(asked.case.recipe)}
    case |= {"said": [one["command"].partition(" -v ")[2] for one in matches[:3]]}
    known = how == "known"
    return {
        FIRST if known else OPEN: counted(first, case, keep=not first),
        WRONG if known else OPEN_WRONG: counted(wrong, case),
    }


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _NEAR * max(abs(one), abs(other))


def _made(task: Task) -> tuple[Drawn, Drawn, str]:
    """The batch that is asked about, another of the run, and the number as it was logged."""
    random = task.random()
    _, how, name = task.name.split("/")
    for _ in range(60):
        asked, other = drawn(random, _LOSSES[name], 2)
        if how == "open":  # ``match`` says that it looks for one ε, not for two
            asked, other = (
                replace(one, case=one.case.by(high=one.case.recipe.low)) for one in (asked, other)
            )
        value = evaluated(asked.case)[0]
        if abs(value) > 1e-3 and (how == "known" or _clips(asked.case)):
            break
    for one in (asked, other):
        one.record.pop("framework", None)
        if how == "open":
            for hidden in _HIDDEN:
                one.record["hyperparameters"].pop(hidden, None)
    return asked, other, f"{value:.{4 if how == 'known' else 8}g}"


def _clips(case: Case) -> bool:
    """Whether either bound of the clip shows in the number."""
    value = evaluated(case)[0]
    low = evaluated(case.by(low=0.9 * case.recipe.low))[0]
    high = evaluated(case.by(high=0.9 * case.recipe.high))[0]
    return min(abs(low - value), abs(high - value)) > 1e-3 * abs(value)
