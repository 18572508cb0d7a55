"""A variant explained: its formula, its hyperparameters, and the rows that are like it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from grpo_cli.engine import probe
from grpo_cli.hyperparameters import HYPERPARAMETERS, Value
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.signature import Part, line
from grpo_cli.variants import NAMES, STAGES, VARIANTS, Variant

SYMBOLS: Mapping[str, str] = {
    "advantage": "A",
    "ratio": "ρ",
    "surrogate": "s",
    "kl": "k",
    "correction": "c",
    "aggregate": "w",
    "kl_aggregate": "w′",
    "entropy": "H",
    "entropy_aggregate": "w″",
}
"""What each stage makes, as the formula writes it."""

_MOST_DIFFERENCES = 2


@dataclass(frozen=True)
class Line:
    """A line of the formula: a stage, its choice as bound, and what that says of itself."""

    stage: str
    symbol: str
    question: str
    choice: str
    summary: str
    details: str


def page(name: str) -> dict[str, Any]:
    """All that the tables know of a variant; made from them, so that a new row has a page."""
    listed = NAMES[name]
    row = VARIANTS[listed]
    bound = stages(row)
    alike, near = related(listed)
    return {
        "variant": listed,
        "aliases": list(row.aliases),
        "title": row.title,
        "formula": formula(row),
        "stages": [vars(_line(stage, one)) for stage, one in bound.items()],
        "hyperparameters": [*hyperparameters(row)],
        "paper": row.paper or None,
        "version": row.version or None,
        "checked": row.checked,
        "note": row.note,
        "same": alike,
        "near": near,
    }


def stages(row: Variant) -> dict[str, Bound]:
    """The bound choices of a row, in the order in which they run."""
    found = {one.name: getattr(row, one.name) for one in fields(row)}
    return {name: bound for name, bound in found.items() if isinstance(bound, Bound)}


def formula(row: Variant) -> str:
    """J in symbols, without the parts that the row has not."""
    policy = "s" if row.correction.choice.absent else "c·s"
    if row.kl.choice.absent:
        core = f"Σₜ w·{policy}"
    elif row.kl.choice.in_reward:
        core = f"Σₜ w·{policy}, the rewards less β·Σₜ k"
    elif row.kl_aggregate is None:
        core = f"Σₜ w·({policy} − β·k)"
    else:
        core = f"Σₜ w·{policy} − β·Σₜ w′·k"
    if row.entropy is not None:
        core += f" + entropy_coef·Σₜ {'w' if row.entropy_aggregate is None else 'w″'}·H"
    return f"J = {core};  loss = −J"


def _line(stage: str, bound: Bound) -> Line:
    doc = inspect.getdoc(bound.choice.function) or ""
    summary, _, details = doc.partition("\n")
    known = STAGES.get(stage)
    return Line(
        stage=stage,
        symbol=SYMBOLS.get(stage, ""),
        question=known.question if known else "",
        choice=line((Part("", bound.name, tuple(bound.values.items())),)),
        summary=summary.replace("``", ""),
        details=details.strip().replace("``", ""),
    )


def hyperparameters(row: Variant) -> list[dict[str, Any]]:
    """Each hyperparameter of the row: its value, what it is, and what others call it."""
    found: dict[str, tuple[Value, str]] = {}
    for stage, bound in stages(row).items():
        for name, value in bound.values.items():
            found.setdefault(name, (value, stage))
    return [
        {
            "name": name,
            "value": value,
            "stage": stage,
            "meaning": HYPERPARAMETERS[name].meaning,
            "aliases": list(HYPERPARAMETERS[name].aliases),
        }
        for name, (value, stage) in found.items()
    ]


def related(listed: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The rows that are the same choices, and those that differ at one or two stages, with how."""
    own = stages(VARIANTS[listed])
    known: Known = {}
    alike: list[str] = []
    near: list[dict[str, Any]] = []
    for name, row in VARIANTS.items():
        if name == listed:
            continue
        apart = differences(own, stages(row), known)
        if not apart:
            alike.append(name)
        elif len(apart) <= _MOST_DIFFERENCES:
            near.append({"variant": name, "version": row.version or None, "differs": apart})
    near.sort(key=lambda one: len(one["differs"]))
    return alike, near


Known = dict[tuple[str, str], bool]
"""Answers that were found before, by stage and the other's choice."""


def differences(
    own: Mapping[str, Bound], other: Mapping[str, Bound], known: Known
) -> dict[str, str]:
    """Stage → the other's choice, where it computes something else."""
    found = {}
    for stage in dict.fromkeys([*own, *other]):
        mine, theirs = own.get(stage), other.get(stage)
        choice = "none" if theirs is None else _line(stage, theirs).choice
        if (stage, choice) not in known:
            known[stage, choice] = _same_choice(stage, mine, theirs, own)
        if not known[stage, choice]:
            found[stage] = choice
    return found


def _same_choice(
    stage: str, mine: Bound | None, theirs: Bound | None, own: Mapping[str, Bound]
) -> bool:
    """Whether two choices at a stage are one: by name and values, or by what they give."""
    if mine is not None and theirs is not None:
        if mine.name == theirs.name and mine.values == theirs.values:
            return True
        return stage in STAGES and _same_value(stage, mine, theirs, own)
    given = mine or theirs
    return given is None or (stage.startswith("entropy") and not _has_bonus(own, given))


def _has_bonus(own: Mapping[str, Bound], given: Bound) -> bool:
    bound = own.get("entropy", given)
    return bool(bound.values.get("entropy_coef"))


def _same_value(stage: str, mine: Bound, theirs: Bound, own: Mapping[str, Bound]) -> bool:
    """Whether J and the gradient on the probe do not change when one stands for the other."""
    base: dict[str, Any] = {name: bound for name, bound in own.items() if name in STAGES}
    if not all(map(_complete, (*base.values(), theirs))):
        return False
    left = Objective(name="", **{**base, stage: mine})
    right = Objective(name="", **{**base, stage: theirs})
    return probe.same_gradient(left, right)


def _complete(bound: Bound) -> bool:
    """Whether every hyperparameter has a value; some rows leave one to the user."""
    return set(bound.values) == set(bound.choice.hyperparameters)
