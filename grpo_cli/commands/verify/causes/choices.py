"""Any other choice of the tables at a stage: tried last, since much of it meets by chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grpo_cli.commands.verify.causes.case import Case, Cause, swapped
from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError, Value
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.objective import Objective
from grpo_cli.variants import STAGES


def neutral(case: Case) -> Iterator[Cause]:
    """The ratios and aggregations that belong to no framework, or to this one."""
    yield from _others(case, "ratio", neutral=True)
    yield from _others(case, "aggregate", neutral=True)


def any_choice(case: Case) -> Iterator[Cause]:
    """All others."""
    yield from _others(case, "surrogate", neutral=True)
    for stage in ("aggregate", "ratio", "surrogate", "correction"):
        yield from _others(case, stage, neutral=False)
    if not case.objective.advantage.choice.given:
        yield from _others(case, "advantage", neutral=False)


def _others(case: Case, stage: str, *, neutral: bool) -> Iterator[Cause]:
    own: Bound = getattr(case.objective, stage)
    if stage == "aggregate" and not case.other_weights:
        return
    for name, choice in STAGES[stage].choices.items():
        if name == own.name or (choice.given and stage == "advantage"):
            continue
        if neutral != ("/" not in name):
            continue
        if stage == "advantage" and _per_response(choice) and not case.other_advantages:
            continue
        bound = _bound(case, name, choice)
        if bound is not None:
            words = f"{_kind(stage, own.choice, choice)}{stage} {name} where {own.name} is meant"
            yield swapped(stage, words, bound)


def _per_response(choice: Choice) -> bool:
    """Whether an advantage is one per response, by what its function says to return."""
    return choice.function.__annotations__.get("return") == "F64"


def _kind(stage: str, own: Choice, other: Choice) -> str:
    """What swapping one aggregation for another comes to."""
    if stage != "aggregate":
        return ""
    if own.total and not other.total:
        return "mean where a sum is meant: "
    if other.total and not own.total:
        return "sum where a mean is meant: "
    return "other denominator: "


def _bound(case: Case, name: str, choice: Choice) -> Bound | None:
    """Another choice, where all its hyperparameters are known."""
    known: Mapping[str, Value] = {
        **choice.defaults,
        **_values(case.objective),
        **case.record.hyperparameters,
    }
    values = {one: known[one] for one in choice.hyperparameters if one in known}
    if len(values) < len(choice.hyperparameters):
        return None
    try:
        return Bound(name, choice, values)
    except (TypeError, HyperparameterError):
        return None


def _values(objective: Objective) -> dict[str, Value]:
    return {
        name: value
        for bound in objective.stages.values()
        for name, value in bound.values.items()
        if name in HYPERPARAMETERS and value is not None
    }
