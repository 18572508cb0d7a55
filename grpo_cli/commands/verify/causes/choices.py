"""Another ratio, or any other choice of the tables at a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np

from grpo_cli.commands.verify.causes.case import Case, Cause, bound_to, swapped
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Ratio
from grpo_cli.variants import STAGES, bind

# ---- ratios -------------------------------------------------------------------------------------


def ratios(case: Case) -> Iterator[Cause]:
    """Yields the ratio inverted, to another policy, or held constant."""
    batch, own = case.batch, case.objective.ratio
    if batch.ratios is None:
        for column, words in _INSTEAD.items():
            if getattr(batch, column) is not None:
                yield Cause("ratio", words, partial(_to, column=column))
                if own.name != "token":
                    by_token = partial(_to, column=column, ratio=_TOKEN)
                    yield Cause("ratio", f"{words}, token by token", by_token)
    for words, change in _CHANGES:
        yield swapped("ratio", words, _changed(own, change))


_INSTEAD = {
    "log_probs_new": "ratio taken as 1: old := new",
    "log_probs_ref": "ratio to the reference where π_old is meant (ref for old)",
    "log_probs_rollout": "ratio to the rollout engine's log-probs where π_old is meant",
}


_TOKEN = bind("ratio", "token")


def _to(case: Case, column: str, **stages: Bound) -> Breakdown:
    batch = replace(case.batch, log_probs_old=getattr(case.batch, column))
    return case.evaluated(batch, **stages)


_CHANGES: tuple[tuple[str, Callable[[Ratio], Ratio]], ...] = (
    (
        "ratio inverted: π_old/π_θ where π_θ/π_old is meant",
        lambda r: Ratio(-r.log_ratio, np.exp(-r.log_ratio), lambda slope: r.pull(-slope)),
    ),
    (
        "old log-probs taken from the new ones with their gradient: "
        "the ratio is 1 and no gradient comes through",
        lambda r: Ratio(np.zeros_like(r.log_ratio), np.ones_like(r.ratio), np.zeros_like),
    ),
    (
        "ratio detached (stop-gradient): nothing flows through it",
        lambda r: r._replace(pull=np.zeros_like),
    ),
)


def _changed(own: Bound, change: Callable[[Ratio], Ratio]) -> Bound:
    """Returns the ratio with its outcome changed."""

    @wraps(own.choice.function)
    def ratio(*columns: Any, **values: Any) -> Ratio:
        return change(own.choice.function(*columns, **values))

    return Bound(own.name, Choice(ratio, own.choice.defaults), own.values)


# ---- the tables: tried last, since many choices fit by chance -----------------------------------


def neutral(case: Case) -> Iterator[Cause]:
    """Yields the ratios and aggregations that belong to no framework."""
    yield from _others(case, "ratio", neutral=True)
    yield from _others(case, "aggregate", neutral=True)


def any_choice(case: Case) -> Iterator[Cause]:
    """Yields all other choices."""
    yield from _others(case, "surrogate", neutral=True)
    for stage in ("aggregate", "ratio", "surrogate", "correction"):
        yield from _others(case, stage, neutral=False)
    if not case.objective.advantage.choice.given:
        yield from _others(case, "advantage", neutral=False)


def _others(case: Case, stage: str, *, neutral: bool) -> Iterator[Cause]:
    own: Bound = getattr(case.objective, stage)
    if stage == "aggregate" and not case.other_weights:
        return
    known = {
        name: value
        for bound in case.objective.stages.values()
        for name, value in bound.values.items()
        if name in HYPERPARAMETERS and value is not None
    } | {**case.record.hyperparameters}
    for name, choice in STAGES[stage].choices.items():
        if name == own.name or (choice.given and stage == "advantage"):
            continue
        if neutral != ("/" not in name):
            continue
        per_response = choice.function.__annotations__.get("return") == "F64"  # as it says
        if stage == "advantage" and per_response and not case.other_advantages:
            continue
        bound = bound_to(name, choice, known)
        if bound is not None:
            words = f"{_kind(stage, own.choice, choice)}{stage} {name} where {own.name} is meant"
            yield swapped(stage, words, bound)


def _kind(stage: str, own: Choice, other: Choice) -> str:
    """What swapping one aggregation for another comes to."""
    if stage != "aggregate":
        return ""
    if own.total and not other.total:
        return "mean where a sum is meant: "
    if other.total and not own.total:
        return "sum where a mean is meant: "
    return "other denominator: "
