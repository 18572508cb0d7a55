"""A variant explained: its formula, its hyperparameters, and the rows that are like it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
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
    alike, near = related(NAMES[name])
    return described(NAMES[name]) | {"same": alike, "near": near}


def described(listed: str) -> dict[str, Any]:
    """What a row says of itself."""
    row = VARIANTS[listed]
    bound = stages(row)
    return {
        "variant": listed,
        "aliases": list(row.aliases),
        "title": row.title,
        "formula": formula(row),
        "stages": [vars(_line(stage, one)) for stage, one in bound.items()],
        "hyperparameters": [*hyperparameters(row)],
        "paper": row.paper or None,
        "version": row.version or None,
        "until": row.until or None,
        "checked": row.checked,
        "note": row.note,
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
        choice=_choice(bound),
        summary=summary.replace("``", ""),
        details=details.strip().replace("``", ""),
    )


def _choice(bound: Bound) -> str:
    return line((Part("", bound.name, tuple(bound.values.items())),))


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
    own = _Own(stages(VARIANTS[listed]))
    alike: list[str] = []
    near: list[dict[str, Any]] = []
    for name, row in VARIANTS.items():
        if name == listed:
            continue
        apart = own.differences(stages(row))
        if not apart:
            alike.append(name)
        elif len(apart) <= _MOST_DIFFERENCES:
            near.append({"variant": name, "version": row.version or None, "differs": apart})
    near.sort(key=lambda one: len(one["differs"]))
    return alike, near


class _Own:
    """A row's choices, held against those of others; what was found once is kept."""

    def __init__(self, bound: Mapping[str, Bound]) -> None:
        self._bound = bound
        self._same: dict[tuple[str, str], bool] = {}

    def differences(self, other: Mapping[str, Bound]) -> dict[str, str]:
        """Stage → the other's choice, where it computes something else; up to one too many."""
        found = {}
        for stage in dict.fromkeys([*self._bound, *other]):
            theirs = other.get(stage)
            choice = "none" if theirs is None else _choice(theirs)
            if (stage, choice) not in self._same:
                self._same[stage, choice] = self._same_choice(stage, theirs)
            if not self._same[stage, choice]:
                found[stage] = choice
            if len(found) > _MOST_DIFFERENCES:
                break
        return found

    def _same_choice(self, stage: str, theirs: Bound | None) -> bool:
        """Whether two choices at a stage are one: by name and values, or by what they give."""
        mine = self._bound.get(stage)
        if mine is not None and theirs is not None:
            if mine.name == theirs.name and mine.values == theirs.values:
                return True
            return stage in STAGES and self._same_value(stage, theirs)
        given = mine or theirs
        return given is None or (stage.startswith("entropy") and not self._has_bonus(given))

    def _has_bonus(self, given: Bound) -> bool:
        bound = self._bound.get("entropy", given)
        return bool(bound.values.get("entropy_coef"))

    def _same_value(self, stage: str, theirs: Bound) -> bool:
        """Whether J and the gradient on the probe do not change when one stands for the other."""
        if not all(map(_complete, (*self._stages.values(), theirs))):
            return False
        other = probe.gradients(Objective(name="", **{**self._stages, stage: theirs}))
        return all(map(probe.same_gradient, self._gradients, other))

    @cached_property
    def _stages(self) -> dict[str, Any]:
        return {name: bound for name, bound in self._bound.items() if name in STAGES}

    @cached_property
    def _gradients(self) -> list[probe.Gradient | None]:
        return [*probe.gradients(Objective(name="", **self._stages))]


def _complete(bound: Bound) -> bool:
    """Whether every hyperparameter has a value; some rows leave one to the user."""
    return set(bound.values) == set(bound.choice.hyperparameters)
