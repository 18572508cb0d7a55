"""The ε that makes a convention give a number, where none is given.

J of a clipped objective does not fall as ε rises: what a larger ε lets through never counts for
less. So two values of ε whose J enclose the number have one between them that gives it, and
few steps find it. Any convention fits with some ε; it is evidence where that ε is a round number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.question import HIGH, LOW, LoggedNumber
from grpo_cli.commands.match.run import Candidate
from grpo_cli.commands.match.space.changes import Change, changed, checked
from grpo_cli.commands.match.space.space import MOST_CHANGES, Axis, Grid, Space, outer
from grpo_cli.variants.plan import Plan

_PLAIN = 8.0
"""Bits of a convention, and its factor, beyond which ε is not solved for."""
_MOST = 60
"""Conventions that it is solved for, the plainest."""
_STEPS, _DIGITS = 40, 6
_USUAL = 0.2
"""ε below where ε above is another."""

Losses = Callable[[Sequence[Plan]], F64]
"""[n] the losses (or objectives) of plans; nan where one cannot be evaluated."""


# ---- where an ε is looked for --------------------------------------------------------------------


@dataclass(frozen=True)
class Bracket:
    """A convention that gives the number for some ε between two.

    Attributes:
        row, changes: the convention without ε.
        names: the hyperparameters that ε sets.
        factor: what it is multiplied by.
        ends: the two ε.
        values: its numbers for them, less the target.
        bits: what it costs without ε.
    """

    row: Plan
    changes: tuple[Change, ...]
    names: tuple[str, ...]
    factor: Factor
    ends: tuple[float, float]
    values: tuple[float, float]
    bits: float

    def plan(self, epsilon: float) -> Plan:
        """Its plan with this ε."""
        flags = Change({}, dict.fromkeys(self.names, epsilon))
        return checked(changed(self.row, *self.changes, flags))

    @property
    def room(self) -> float:
        """By how much ε may change for each unit of the number."""
        return abs((self.ends[1] - self.ends[0]) / (self.values[1] - self.values[0]))


def brackets(
    space: Space, every: F64, factors: Sequence[Factor], target: LoggedNumber
) -> list[Bracket]:
    """The plain conventions that give the number for some ε, the plainest first.

    Of those that give the same numbers one is listed.
    """
    found: list[Bracket] = []
    starts = np.searchsorted(space.grid, np.arange(len(space.grids) + 1))
    searched = {axis: [*_searched(axis)] for axis in {grid.axes.pairs for grid in space.grids}}
    for number, grid in enumerate(space.grids):
        own = slice(int(starts[number]), int(starts[number + 1]))
        at, values = space.at[own], every[own]
        for pair, names, steps in searched[grid.axes.pairs] if len(at) else ():
            chosen, bits = _plain(grid, pair)
            curves = _curves(grid, chosen, [place for _, place in steps], (at, values))
            for factor, row, step, ends in _crossing(curves, factors, target):
                cost = float(bits[row]) + factor.bits
                if cost <= _PLAIN:
                    others = zip(grid.axes.others, chosen[row].tolist(), strict=True)
                    a, k, w = (axis.changes[place] for axis, place in others)
                    between = steps[step][0], steps[step + 1][0]
                    found.append(
                        Bracket(grid.plan, (a, pair, k, w), names, factor, between, ends, cost)
                    )
    best: dict[object, Bracket] = {}
    for one in sorted(found, key=lambda one: one.bits):
        best.setdefault((one.ends, *(f"{value:.9g}" for value in one.values)), one)
    return list(best.values())


def _searched(pairs: Axis) -> Iterator[tuple[Change, tuple[str, ...], list[tuple[float, int]]]]:
    """A policy change, the flags of ε, and (ε, place on the axis) in rising order.

    ε is the same on either side, or 0.2 below.
    """
    steps: dict[object, list[tuple[float, int]]] = {}
    kept: dict[object, tuple[Change, tuple[str, ...]]] = {}
    for place, pair in enumerate(pairs.changes):
        values = {name: pair.flags[name] for name in (LOW, HIGH) if name in pair.flags}
        families = [tuple(values)] if len(set(values.values())) == 1 else []
        if values.get(LOW) == _USUAL and HIGH in values:
            families.append((HIGH,))
        for names in families:
            rest = {name: value for name, value in pair.flags.items() if name not in names}
            same = (tuple(pair.stages.items()), tuple(rest.items()), names)
            plainest = kept.get(same, (pair, names))[0].bits
            kept[same] = replace(pair, flags=rest, bits=min(pair.bits, plainest)), names
            steps.setdefault(same, []).append((float(pair.flags[names[0]] or 0.0), place))
    for wanted, (pair, names) in kept.items():
        yield pair, names, sorted(steps[wanted])


def _plain(grid: Grid, pair: Change) -> tuple[NDArray[np.int64], F64]:
    """[n, 3] places on the three other axes that make a plain convention, and [n] its bits."""
    axes = grid.axes.others
    count = pair.count + outer([axis.counts for axis in axes], np.int8)
    cost = outer([axis.bits for axis in axes], np.float64)
    cost += grid.own_bits + pair.bits
    chosen = np.argwhere((cost <= _PLAIN) & (count < MOST_CHANGES))
    return chosen, cost[tuple(chosen.T)]


def _curves(
    grid: Grid,
    chosen: NDArray[np.int64],
    places: Sequence[int],
    known: tuple[NDArray[np.generic], F64],
) -> F64:
    """[n, ε] the values of plain conventions; nan where one was not tried."""
    at, value = known
    shape = tuple(len(axis) for axis in grid.axes)
    a, k, w = (chosen[:, axis, None] for axis in range(3))
    flat = np.ravel_multi_index((a, np.array(places)[None, :], k, w), shape)
    found = np.searchsorted(at, flat)
    found[found == len(at)] = 0
    return np.where(at[found] == flat, value[found], np.nan)


def _crossing(
    curves: F64, factors: Sequence[Factor], target: LoggedNumber
) -> Iterator[tuple[Factor, int, int, tuple[float, float]]]:
    """Factor, curve, step, and how far off both ends are, for a number between them."""
    times = np.array([factor.times for factor in factors])
    off = times[:, None, None] * curves - target.value
    within = (off[..., :-1] < 0) != (off[..., 1:] < 0)
    within &= np.isfinite(off[..., :-1] + off[..., 1:])
    for at, row, step in np.argwhere(within).tolist():
        yield factors[at], row, step, (float(off[at, row, step]), float(off[at, row, step + 1]))


# ---- the ε itself --------------------------------------------------------------------------------


def solve(found: Sequence[Bracket], target: LoggedNumber, losses: Losses) -> list[Candidate]:
    """Conventions that give the number with a round ε, the likeliest first."""
    found = [one for one in found if not one.plan(one.ends[0]).wants_moments]
    costs = np.array([one.bits for one in found])
    tried = found[:_MOST]
    candidates = []
    for one, (epsilon, digits) in zip(tried, _round(tried, target, losses), strict=True):
        if digits is None:
            continue
        plain = int(np.count_nonzero(costs <= one.bits))
        share = min(2.0 * target.half * one.room * 10.0**digits, 1.0)
        bits = one.bits + digits * float(np.log2(10.0))
        size, chance = abs(target.value), plain * share
        candidates.append(Candidate(one.plan(epsilon), one.factor, bits, size, chance))
    return sorted(candidates, key=lambda one: (one.chance, one.bits))


def _round(
    found: Sequence[Bracket], target: LoggedNumber, losses: Losses
) -> list[tuple[float, int | None]]:
    """(ε, its digits behind the point) of each; no digits where no round one gives the number."""
    exact = _bisected(found, target, losses)
    result: list[tuple[float, int | None]] = [(float(one), None) for one in exact]
    for digits in range(1, _DIGITS + 1):
        left = [at for at, (_, fits) in enumerate(result) if fits is None]
        rounded = [round(float(exact[at]), digits) for at in left]
        off = _off([found[at] for at in left], rounded, target, losses)
        for at, epsilon, far in zip(left, rounded, off.tolist(), strict=True):
            if abs(far) <= 1.000001 * target.half and epsilon > 0:
                result[at] = epsilon, digits
    return result


def _bisected(found: Sequence[Bracket], target: LoggedNumber, losses: Losses) -> F64:
    """The ε that give the number; regula falsi with halving (Illinois), as J has corners."""
    low, high = (np.array([one.ends[end] for one in found]) for end in (0, 1))
    below, above = (np.array([one.values[end] for one in found]) for end in (0, 1))
    middle = low.copy()
    left = np.arange(len(found))
    for _ in range(_STEPS):
        if not len(left):
            return middle
        slope = (above[left] - below[left]) / (high[left] - low[left])
        middle[left] = high[left] - above[left] / slope
        off = _off([found[at] for at in left.tolist()], middle[left].tolist(), target, losses)
        same = np.sign(off) == np.sign(below[left])
        above[left], below[left] = (
            np.where(same, above[left] / 2.0, off),
            np.where(same, off, below[left] / 2.0),
        )
        low[left], high[left] = (
            np.where(same, middle[left], low[left]),
            np.where(same, high[left], middle[left]),
        )
        left = left[(np.abs(off) > 0.1 * target.half) & (high[left] - low[left] > 1e-13)]
    return middle


def _off(
    found: Sequence[Bracket], at: Sequence[float], target: LoggedNumber, losses: Losses
) -> F64:
    """The number of each for its ε, less the target; nan where it cannot be evaluated."""
    plans = [one.plan(epsilon) for one, epsilon in zip(found, at, strict=True)]
    return np.array([one.factor.times for one in found]) * losses(plans) - target.value
