"""The mistakes that people make, each as another way to evaluate the same record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np

from grpo_cli.batch import Batch
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError, Value
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Ratio
from grpo_cli.records import Record, assemble
from grpo_cli.variants import STAGES, bind


@dataclass(frozen=True, eq=False)
class Alternative:
    """Another reading of the record: ``cause`` says what it would mean if this one agrees."""

    cause: str
    batch: Batch
    objective: Objective


def alternatives(record: Record, batch: Batch, objective: Objective) -> Iterator[Alternative]:
    """The likely mistakes first, then every other choice at every stage."""
    for cause, other in _data(record, batch):
        yield Alternative(cause, other, objective)
    for cause, another in _objectives(record, batch, objective):
        yield Alternative(cause, batch, another)


# ---- the same objective on other data -----------------------------------------------------------


def _data(record: Record, batch: Batch) -> Iterator[tuple[str, Batch]]:
    yield from _ratios(batch)
    if batch.advantages is not None:
        yield "wrong sign of the advantages", replace(batch, advantages=-batch.advantages)
    if batch.rewards is not None:
        yield "wrong sign of the rewards", replace(batch, rewards=-batch.rewards)
    if batch.log_probs_ref is not None and batch.log_probs_new is not None:
        mirrored = 2.0 * batch.log_probs_new - batch.log_probs_ref
        yield (
            "KL direction reversed: log π_ref − log π_θ where log π_θ − log π_ref is meant",
            replace(batch, log_probs_ref=mirrored),
        )
        if batch.log_probs_old is not None:
            swapped = replace(batch, log_probs_ref=batch.log_probs_old)
            yield "KL to the old policy where the reference is meant", swapped
    if record.mask is not None:
        try:
            yield "mask ignored: masked tokens count", assemble([replace(record, mask=None)])
        except InputError:  # what is masked cannot be evaluated, so nobody did
            return


def _ratios(batch: Batch) -> Iterator[tuple[str, Batch]]:
    new, old = batch.log_probs_new, batch.log_probs_old
    if batch.ratios is None and new is not None and old is not None:
        yield "ratio taken as 1: old := new", replace(batch, log_probs_old=new)
        if batch.log_probs_rollout is not None:
            rollout = replace(batch, log_probs_old=batch.log_probs_rollout)
            yield "ratio to the rollout engine's log-probs where π_old is meant", rollout


# ---- another objective on the same data ---------------------------------------------------------


def _objectives(
    record: Record, batch: Batch, objective: Objective
) -> Iterator[tuple[str, Objective]]:
    inverted = Bound("inverted", _turned(objective.ratio.choice), objective.ratio.values)
    yield "ratio inverted: π_old/π_θ where π_θ/π_old is meant", replace(objective, ratio=inverted)
    yield from _clip(objective)
    yield from _advantage(batch, objective)
    yield from _kl(objective)
    for stage in ("aggregate", "ratio", "surrogate", "correction"):
        yield from _others(record, objective, stage)


def _turned(choice: Choice) -> Choice:
    """The inverse of a ratio, whose slope is the other way round too."""

    @wraps(choice.function)
    def turned(*columns: Any, **values: Value) -> Ratio:
        ratio: Ratio = choice.function(*columns, **values)
        return Ratio(-ratio.log_ratio, np.exp(-ratio.log_ratio), lambda s: ratio.pull(-s))

    return Choice(turned, choice.defaults)


def _clip(objective: Objective) -> Iterator[tuple[str, Objective]]:
    values = objective.surrogate.values
    if "epsilon_low" not in values:
        return
    yield "clip missing", replace(objective, surrogate=bind("surrogate", "unclipped"))
    low, high = values["epsilon_low"], values["epsilon_high"]
    one_sided = (
        ("lower clip missing", {"epsilon_low": 1.0}),
        ("upper clip missing", {"epsilon_high": 1e6}),
        ("epsilon_low and epsilon_high swapped", {"epsilon_low": high, "epsilon_high": low}),
        ("epsilon_low used on both sides", {"epsilon_high": low}),
        ("epsilon_high used on both sides", {"epsilon_low": high}),
        ("dual clip missing", {"dual_clip": None}),
        ("dual clip 3 added", {"dual_clip": 3.0}),
    )
    for cause, changed in one_sided:
        if changed.keys() <= values.keys():
            yield from _with(cause, objective, "surrogate", changed)


_EPS = (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4)


def _advantage(batch: Batch, objective: Objective) -> Iterator[tuple[str, Objective]]:
    own = objective.advantage
    if own.choice.given or batch.rewards is None:
        return
    if "std_ddof" in own.values:
        for ddof in (0, 1):
            for eps in _EPS:
                changed = {"std_ddof": ddof, "std_eps": eps}
                cause = _std_cause(own, ddof, eps)
                if cause:
                    yield from _with(cause, objective, "advantage", changed)
    else:
        for ddof in (0, 1):
            for eps in _EPS:
                std = bind("advantage", "group-std", std_ddof=ddof, std_eps=eps, std_min=0.0)
                cause = f"advantage divided by the group's std (std_ddof={ddof}, std_eps={eps:g})"
                yield cause, replace(objective, advantage=std)
    for name in STAGES["advantage"].choices:
        if name not in (own.name, "given"):
            yield from _choice(
                f"advantage {name} where {own.name} is meant", {}, objective, "advantage", name
            )


def _std_cause(own: Bound, ddof: int, eps: float) -> str:
    changes = []
    if ddof != own.values["std_ddof"]:
        changes.append(f"ddof {ddof} where {own.values['std_ddof']} is meant")
    if eps != own.values.get("std_eps", eps):
        changes.append(f"std_eps {eps:g} where {own.values['std_eps']:g} is meant")
    return ", ".join(changes)


def _kl(objective: Objective) -> Iterator[tuple[str, Objective]]:
    own = objective.kl
    if own.choice.absent:
        return
    if own.values.get("beta"):
        yield from _with("KL missing (β = 0)", objective, "kl", {"beta": 0.0})
    for weight in ("none", "ratio"):
        if own.values.get("kl_weight", weight) != weight:
            said = "not weighted by the ratio" if weight == "none" else "weighted by the ratio"
            yield from _with(f"KL {said}", objective, "kl", {"kl_weight": weight})
    for name in STAGES["kl"].choices:
        if name != own.name and name != "none":
            yield from _choice(
                f"KL estimator {name} where {own.name} is meant", {}, objective, "kl", name
            )


def _others(record: Record, objective: Objective, stage: str) -> Iterator[tuple[str, Objective]]:
    own: Bound = getattr(objective, stage)
    for name, choice in STAGES[stage].choices.items():
        if name != own.name:
            cause = f"{_words(stage, own.choice, choice)}{stage} {name} where {own.name} is meant"
            yield from _choice(cause, record.hyperparameters, objective, stage, name)


def _words(stage: str, own: Choice, other: Choice) -> str:
    """What swapping one aggregation for another comes to."""
    if stage != "aggregate":
        return ""
    if own.total and not other.total:
        return "mean where a sum is meant: "
    if other.total and not own.total:
        return "sum where a mean is meant: "
    return "other denominator: "


def _with(
    cause: str, objective: Objective, stage: str, changed: Mapping[str, Value]
) -> Iterator[tuple[str, Objective]]:
    own: Bound = getattr(objective, stage)
    try:
        bound = Bound(own.name, own.choice, {**own.values, **changed})
    except (TypeError, HyperparameterError):
        return
    yield cause, _replaced(objective, stage, bound)


def _choice(
    cause: str, given: Mapping[str, Value], objective: Objective, stage: str, name: str
) -> Iterator[tuple[str, Objective]]:
    """The same with another choice at a stage, where all its hyperparameters are known."""
    choice = STAGES[stage].choices[name]
    own = {name: value for name, value in _values(objective).items() if value is not None}
    known = {**choice.defaults, **own, **given}
    values = {one: known[one] for one in choice.hyperparameters if one in known}
    if len(values) < len(choice.hyperparameters):
        return
    try:
        yield cause, _replaced(objective, stage, Bound(name, choice, values))
    except (TypeError, HyperparameterError):
        return


def _replaced(objective: Objective, stage: str, bound: Bound) -> Objective:
    stages: dict[str, Any] = {stage: bound}
    if stage == "aggregate":
        stages["kl_aggregate"] = None
    return replace(objective, **stages)


def _values(objective: Objective) -> dict[str, Value]:
    found = {name: one for bound in objective.stages.values() for name, one in bound.values.items()}
    return {name: value for name, value in found.items() if name in HYPERPARAMETERS}
