"""Differences between rows of one family, as ``gspo`` and ``verl/gspo``; replaced values.

A record's hyperparameters replace those that a row has of its own, GSPO's ε of 0.0003 by a clip of
0.2: nothing else in the numbers shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cli.commands.compare.answer import FamilyDifference, Replaced
from grpo_cli.commands.compare.sides import Side
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.signature import Part

_STAGES = {
    "adv": "advantage",
    "ratio": "ratio",
    "surrogate": "surrogate",
    "kl": "kl",
    "corr": "correction",
    "agg": "aggregate",
    "kl_agg": "kl aggregate",
    "ent": "entropy",
    "ent_agg": "entropy aggregate",
}
_OFF = {"kl": ("beta", ("kl", "kl_agg")), "ent": ("entropy_coef", ("ent", "ent_agg"))}
"""The term → the coefficient with which it has no part in J, and what is then of no account."""


class RowDifference(NamedTuple):
    """Where two rows differ: hyperparameters of the same choices, and stages with other choices."""

    values: Mapping[str, tuple[Value, Value]]
    stages: tuple[str, ...]


def differences(sides: Sequence[Side]) -> list[FamilyDifference]:
    """For each family what its rows have at the same choice, against the first of them.

    Only the surrogate's hyperparameters are compared, unless rows differ in hyperparameters alone.
    """
    families: dict[str, list[Side]] = {}
    for side in sides:
        families.setdefault(side.plan.variant.rpartition("/")[2], []).append(side)
    return [row for first, *others in families.values() for row in _of_family(first, others)]


def replaced(sides: Sequence[Side]) -> list[Replaced]:
    """For each row the surrogate's hyperparameters whose own value the records replace: both."""
    pairs = [(side.plan.variant, side.plan.replaced(side.signed)) for side in sides]
    return [
        Replaced(variant, {name: list(both) for name, both in values.items()})
        for variant, values in pairs
        if values
    ]


def _of_family(first: Side, rest: Sequence[Side]) -> Iterator[FamilyDifference]:
    alike: dict[tuple[Any, ...], list[tuple[str, RowDifference]]] = {}
    for other in rest:
        found = _difference(_pieces(first), _pieces(other))
        if found.values:
            alike.setdefault(tuple(found.values.items()), []).append((other.plan.variant, found))
    for values, rows in alike.items():
        others = {stage for _, found in rows for stage in found.stages}
        yield FamilyDifference(
            variants=[first.plan.variant, *(name for name, _ in rows)],
            hyperparameters={name: list(pair) for name, pair in values},
            stages=[stage for stage in _STAGES.values() if stage in others],
        )


def _pieces(side: Side) -> dict[str, Part]:
    """The pieces of the signature that have a part in J, by key."""
    found = {part.key: part for part in side.signed}
    for key, (coefficient, without) in _OFF.items():
        if key in found and not dict(found[key].values).get(coefficient):
            found = {name: part for name, part in found.items() if name not in without}
    return {key: part for key, part in found.items() if key in _STAGES}


def _difference(one: Mapping[str, Part], other: Mapping[str, Part]) -> RowDifference:
    keys = [key for key in _STAGES if key in one or key in other]
    same = [key for key in keys if key in one and key in other and one[key].name == other[key].name]
    others = tuple(_STAGES[key] for key in keys if key not in same)
    values: dict[str, tuple[Value, Value]] = {}
    for key in same if not others else [key for key in same if key == "surrogate"]:
        pairs = zip(one[key].values, other[key].values, strict=True)
        values |= {name: (mine, theirs) for (name, mine), (_, theirs) in pairs if mine != theirs}
    return RowDifference(values, others)
