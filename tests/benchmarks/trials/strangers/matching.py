"""``match`` on losses of rows drawn over frameworks, judged by a batch that it never saw.

A convention is right where its printed command gives, on another batch of the run, the loss that
the trainer computed there.
"""

from __future__ import annotations

from collections.abc import Iterator

from trials import product
from trials.score import Count, Task, counted
from trials.strangers.losses import Case, evaluated
from trials.strangers.mistake import kind, row
from trials.strangers.settings import Drawn, asked
from trials.strangers3.exam import RUNS

FIRST = "`match`, the record's settings known, 4 digits: the truth is first"
WRONG = "… one convention is named and wrong"
OPEN = "`match`, ε and β unknown, 8 digits: the truth is first"
OPEN_WRONG = "… one convention is named and wrong, ε and β unknown"

_HIDDEN = ("epsilon_low", "epsilon_high", "beta")
_NEAR = 1e-3


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for seed in range(first, first + seeds):
        for at in range(len(RUNS)):
            for how in ("known", "open"):
                yield Task("strangers", f"third/match/{how}/{at}", seed)


def records(task: Task) -> tuple[list[product.Record], list[str]]:
    one, _, text = _made(task)
    return [one.record], ["match", "--loss", text]


def ask_one(task: Task) -> dict[str, Count]:
    one, other, text = _made(task)
    known = task.name.split("/")[2] == "known"
    answer = product.run("match", product.place([one.record]), "--loss", text)
    matches = (answer.document or {}).get("matches", [])
    path = product.place([other.record], "probe")
    wanted = evaluated(other.case)[0]
    values = [product.printed_value(match["command"], path) for match in matches[:8]]
    right = [value is not None and _near(value, wanted) for value in values]
    alike = [abs(match["value"] - matches[0]["value"]) <= 1e-9 for match in matches[:8]]
    first = any(hit and same for hit, same in zip(right, alike, strict=True))
    wrong = len(matches) == 1 and answer.code == 0 and not first
    case = {"task": task, "code": answer.code, "truth": str(one.case.recipe)}
    case |= {"said": [match["command"].partition(" -v ")[2] for match in matches[:3]]}
    return {
        row(FIRST if known else OPEN): counted(first, case, keep=not first),
        row(WRONG if known else OPEN_WRONG): counted(wrong, case),
        kind("match", task.name.split("/", 2)[2]): counted(first, None),
    }


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _NEAR * max(abs(one), abs(other))


def _made(task: Task) -> tuple[Drawn, Drawn, str]:
    """The batch that is asked about, another of the run, and the number as it was logged."""
    random = task.random()
    _, _, how, at = task.name.split("/")
    known = how == "known"
    wish = RUNS[int(at)]
    for _ in range(60):
        one, other = asked(random, wish, 2)
        if not known and one.case.recipe.surrogate != "cispo":  # it looks for one ε, not for two
            one, other = (
                Drawn(it.record, it.case.by(high=it.case.recipe.low)) for it in (one, other)
            )
        value = evaluated(one.case)[0]
        if abs(value) > 1e-3 and (known or _clips(one.case)):
            break
    for it in (one, other):
        it.record.pop("framework", None)
        if not known:
            for hidden in _HIDDEN:
                it.record["hyperparameters"].pop(hidden, None)
    return one, other, f"{value:.{4 if known else 8}g}"


def _clips(case: Case) -> bool:
    """Whether either bound of the clip shows in the number."""
    value = evaluated(case)[0]
    moved = [evaluated(case.by(high=0.9 * case.recipe.high))[0]]
    if case.recipe.surrogate == "clip":
        moved.append(evaluated(case.by(low=0.9 * case.recipe.low))[0])
    return min(abs(one - value) for one in moved) > 1e-3 * abs(value)
