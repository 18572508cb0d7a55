"""Where an ε lies that makes a convention give a number: between two whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.space import changes as space
from grpo_cli.commands.match.space.changes import Change
from grpo_cli.commands.match.space.conventions import Index, Part, Space
from grpo_cli.commands.match.space.parts import MOST_CHANGES
from grpo_cli.commands.match.typed import Typed
from grpo_cli.variants.plan import Plan

_PLAIN = 8.0
"""Bits of a convention, and its factor, beyond which ε is not solved for."""


@dataclass(frozen=True)
class Bracket:
    """A convention that gives the number for some ε between two.

    Attributes:
        part, changes: the convention, but for ε.
        names: the hyperparameters that ε sets.
        factor: what it is multiplied by.
        ends: the two ε.
        values: what it gives for them, less the number.
        bits: what it costs without ε.
    """

    part: Part
    changes: tuple[Change, ...]
    names: tuple[str, ...]
    factor: Factor
    ends: tuple[float, float]
    values: tuple[float, float]
    bits: float

    def plan(self, epsilon: float) -> Plan:
        """Its plan with this ε."""
        flags = Change({}, dict.fromkeys(self.names, epsilon))
        return space.checked(space.changed(self.part.plan, *self.changes, flags))

    @property
    def room(self) -> float:
        """By how much ε may change for each unit of the number."""
        return abs((self.ends[1] - self.ends[0]) / (self.values[1] - self.values[0]))


@dataclass(frozen=True)
class Family:
    """A convention with any ε_low and ε_high.

    Attributes:
        part, changes: the convention, but for ε.
        bits: what it costs without them.
    """

    part: Part
    changes: tuple[Change, ...]
    bits: float

    def plan(self, low: float, high: float) -> Plan:
        """Its plan with these."""
        flags = Change({}, {"epsilon_low": float(low), "epsilon_high": float(high)})
        return space.checked(space.changed(self.part.plan, *self.changes, flags))


def families(made: Space, j: F64) -> list[Family]:
    """The plain conventions that take an ε on either side, once each; j is [C] what each gives."""
    found: dict[object, Family] = {}
    for part, pair, names, steps, known in _of_parts(made, j):
        if len(names) < 2 or not len(known[0]):
            continue
        chosen, bits = _plain(part, pair)
        for row, curve in enumerate(_curves(part, chosen, steps, known)):
            a, k, w = chosen[row].tolist()
            changes = (part.axes[0][a], pair, part.axes[2][k], part.axes[3][w])
            one = Family(part, changes, float(bits[row]))
            same = tuple(f"{value:.9g}" for value in curve)
            if same not in found or one.bits < found[same].bits:
                found[same] = one
    return list(found.values())


def brackets(made: Space, j: F64, factors: Sequence[Factor], target: Typed) -> Iterator[Bracket]:
    """The plain conventions that give the number for some ε; j is [C] what each gives."""
    for part, pair, names, steps, known in _of_parts(made, j):
        yield from _of_family(part, pair, names, steps, known, factors, target)


Steps = list[tuple[float, int]]
"""ε, and its place on the axis of policies, in rising order."""
Known = tuple[Index, F64]
"""Combinations, and what each gives."""


def _of_parts(made: Space, j: F64) -> Iterator[tuple[Part, Change, tuple[str, ...], Steps, Known]]:
    starts = np.searchsorted(made.part, np.arange(len(made.parts) + 1))
    for number, part in enumerate(made.parts):
        own = slice(int(starts[number]), int(starts[number + 1]))
        for pair, names, steps in _families(part):
            yield part, pair, names, steps, (made.at[own], j[own])


def _families(part: Part) -> Iterator[tuple[Change, tuple[str, ...], list[tuple[float, int]]]]:
    """A policy change, the flags of ε, and (ε, place on the axis) in rising order."""
    steps: dict[object, list[tuple[float, int]]] = {}
    kept: dict[object, tuple[Change, tuple[str, ...]]] = {}
    for place, pair in enumerate(part.axes[1]):
        names = tuple(name for name in pair.flags if name in ("epsilon_low", "epsilon_high"))
        if names:
            rest = {name: value for name, value in pair.flags.items() if name not in names}
            same = (tuple(pair.stages.items()), tuple(rest.items()), names)
            kept[same] = replace(pair, flags=rest), names
            steps.setdefault(same, []).append((float(pair.flags[names[0]] or 0.0), place))
    for wanted, (pair, names) in kept.items():
        yield pair, names, sorted(steps[wanted])


def _of_family(
    part: Part,
    pair: Change,
    names: tuple[str, ...],
    steps: Steps,
    known: Known,
    factors: Sequence[Factor],
    target: Typed,
) -> Iterator[Bracket]:
    if not len(known[0]):
        return
    chosen, bits = _plain(part, pair)
    curves = _curves(part, chosen, steps, known)
    for factor in factors:
        off = factor.times * curves - target.value
        within = (off[:, :-1] < 0) != (off[:, 1:] < 0)
        within &= np.isfinite(off[:, :-1] + off[:, 1:])
        for row, step in np.argwhere(within).tolist():
            cost = float(bits[row]) + factor.bits
            if cost <= _PLAIN:
                a, k, w = chosen[row].tolist()
                yield Bracket(
                    part,
                    (part.axes[0][a], pair, part.axes[2][k], part.axes[3][w]),
                    names,
                    factor,
                    (steps[step][0], steps[step + 1][0]),
                    (float(off[row, step]), float(off[row, step + 1])),
                    cost,
                )


def _curves(part: Part, chosen: NDArray[np.int64], steps: Steps, known: Known) -> F64:
    """[n, ε] what plain conventions give; nan where one was not tried."""
    at, value = known
    shape = tuple(len(axis) for axis in part.axes)
    places = np.array([place for _, place in steps])
    a, k, w = (chosen[:, axis, None] for axis in range(3))
    flat = np.ravel_multi_index((a, places[None, :], k, w), shape)
    found = np.searchsorted(at, flat)
    found[found == len(at)] = 0
    return np.where(at[found] == flat, value[found], np.nan)


def _plain(part: Part, pair: Change) -> tuple[NDArray[np.int64], F64]:
    """[n, 3] places on the three other axes that make a plain convention, and [n] its bits."""
    axes = [part.axes[at] for at in (0, 2, 3)]
    count = pair.count + _outer([[one.count for one in axis] for axis in axes])
    cost = pair.bits + _outer([[one.bits for one in axis] for axis in axes])
    chosen = np.argwhere((cost <= _PLAIN) & (count < MOST_CHANGES))
    return chosen, cost[tuple(chosen.T)]


def _outer(parts: Sequence[Sequence[float]]) -> F64:
    a, k, w = (np.array(part, np.float64) for part in parts)
    total: F64 = a[:, None, None] + k[None, :, None] + w
    return total


def distinct(found: Iterator[Bracket]) -> list[Bracket]:
    """One of those that give the same numbers, the plainest; the plainest first."""
    best: dict[object, Bracket] = {}
    for one in sorted(found, key=lambda one: one.bits):
        best.setdefault((one.ends, *(f"{value:.9g}" for value in one.values)), one)
    return list(best.values())
