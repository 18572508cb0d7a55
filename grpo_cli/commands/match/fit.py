"""Which conventions give a number, with which sign, factor and β; and how many would by chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.match.space.changes import BETAS, STEPS
from grpo_cli.engine.chunk import Chunk
from grpo_cli.variants.plan import Plan

FLOAT32 = 2.0**-23
_ROUNDING = 1e-14
"""How far off our own sums may be, relatively."""

GRID = np.array(sorted(BETAS))
"""The β that are tried, in rising order."""
GRID_BITS = np.array([BETAS[beta] for beta in GRID.tolist()])
_LEVELS = [(bits, GRID[bits == GRID_BITS]) for bits in sorted(set(BETAS.values()))]
"""The β that are tried, by their bits."""


@dataclass(frozen=True)
class Values:
    """U distinct conventions on the data.

    Attributes:
        policy: [U] J without the KL.
        kl: [U] what β multiplies, where β is solved for; else 0.
        beta: [U] the row's own β.
        size: [U] the magnitude that J is made of.
        bits: [U] the bits of the cheapest convention that has the value.
    """

    policy: F64
    kl: F64
    beta: F64
    size: F64
    bits: F64

    @property
    def own(self) -> F64:
        """[U] J with the row's own β."""
        return self.policy - self.beta * self.kl


# ---- factors -------------------------------------------------------------------------------------

_GIVEN = ("gradient_accumulation_steps", "num_processes", "dp_size", "steps_per_generation")


@dataclass(frozen=True)
class Factor:
    """What a loss is multiplied by.

    Attributes:
        times: the factor; negative for the other sign.
        bits: what it costs.
        meaning: what it stands for; "" for none.
    """

    times: float
    bits: float = 0.0
    meaning: str = ""


def factors_of(base: Plan, chunk: Chunk) -> list[Factor]:
    """Signs, and factors with a meaning: those that the records give, else usual accumulation."""
    given = {
        name: value
        for name in _GIVEN
        if isinstance(value := {**chunk.settings, **base.flags}.get(name), int) and value >= 1
    }
    counts = {value: (1.0, name) for name, value in given.items() if value > 1}
    if len(given) > 1:
        products = {a * b for a in given.values() for b in given.values()} - counts.keys() - {1}
        counts |= {value: (3.0, " × ".join(given)) for value in sorted(products)}
    if "gradient_accumulation_steps" not in given:
        usual = {count: (bits, "accumulated micro-batches") for count, bits in STEPS.items()}
        counts = usual | counts
    factors = [Factor(1.0)]
    for count, (bits, meaning) in counts.items():
        factors.append(Factor(1.0 / count, bits, f"÷ {count} ({meaning})"))
        factors.append(Factor(float(count), bits + 1.0, f"× {count} ({meaning})"))
    flipped = [replace(one, times=-one.times, bits=one.bits + 2.0) for one in factors]
    return [*factors, *flipped]


# ---- hits ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hits:
    """What fits: [H] conventions, factors, and β: 0 for the row's own, else its place + 1."""

    convention: NDArray[np.int64]
    factor: NDArray[np.int64]
    beta: NDArray[np.int64]


def hits(values: Values, factors: Sequence[Factor], target: LoggedNumber) -> Hits:
    """The conventions that give the number, to its digits."""
    parts = [np.zeros((3, 0), np.int64)]
    for at, factor in enumerate(factors):
        off = np.abs(factor.times * values.own - target.value)
        own = np.flatnonzero(off <= target.half + FLOAT32 * abs(factor.times) * values.size)
        for found, beta in ((own, np.zeros_like(own)), *_solved(values, factor, target)):
            parts.append(np.array([found, np.full(len(found), at), beta]))
    return Hits(*np.concatenate(parts, axis=1))


def _solved(
    values: Values, factor: Factor, target: LoggedNumber
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Conventions, and the round β that makes each fit, the cheapest: J is linear in β."""
    chosen = np.flatnonzero(values.kl)
    if not len(chosen):
        return
    kl = values.kl[chosen]
    exact = (values.policy[chosen] - target.value / factor.times) / kl
    room = target.half / np.abs(factor.times * kl)
    some = np.flatnonzero(np.abs(_nearest(GRID, exact - room) - exact) <= 2.0 * room)
    chosen, exact, room = chosen[some], exact[some], room[some]  # none that fits is left out
    taken = np.zeros(len(chosen), dtype=bool)
    for _, grid in _LEVELS:
        nearest = _nearest(grid, exact - room)
        own = nearest == values.beta[chosen]
        fits = (np.abs(nearest - exact) <= room) & ~taken & ~own
        taken |= fits
        yield chosen[fits], np.searchsorted(GRID, nearest[fits]) + 1


def _nearest(grid: F64, least: F64) -> F64:
    """The first value of the grid that is no less than each; the last where all are."""
    return grid[np.clip(np.searchsorted(grid, least), 0, len(grid) - 1)]


def rough_bits(off: F64, half: float, size: F64) -> F64:
    """Bits for values that are off by more than the digits allow, as sums in float32 may be.

    Such a number may be anywhere in that wider room: it is the less likely, the wider that is.
    """
    sure = np.maximum(1.000001 * half, _ROUNDING * size)
    wider = np.log2(np.maximum(FLOAT32 * size / sure, 16.0))
    return np.where(off > sure, wider, 0.0)


# ---- chance --------------------------------------------------------------------------------------

_WINDOW = 0.2
"""The part of the number around it in which tried values are counted."""
_AT_ITS_END = 1.0 + 2.0**-36
"""A value at the window's very end is in it, whichever way its sum was rounded."""


class Chance:
    """How many conventions hit a number by chance, by their bits at most.

    Counted: the tried values within a fifth of the number on either side, times the share of that
    window which the number's digits leave.
    """

    def __init__(self, values: Values, factors: Sequence[Factor], target: LoggedNumber) -> None:
        self._counts = np.zeros(64)
        self._half = target.half
        self._window = _WINDOW * abs(target.value)
        for factor in factors if target.value else ():
            self._count(values, factor, target)

    def _count(self, values: Values, factor: Factor, target: LoggedNumber) -> None:
        near = np.abs(factor.times * values.own - target.value) <= self._window * _AT_ITS_END
        self._add(values.bits[near] + factor.bits, np.ones(int(near.sum())))
        chosen = np.flatnonzero(values.kl)
        kl = values.kl[chosen]
        exact = (values.policy[chosen] - target.value / factor.times) / kl
        room = _AT_ITS_END * self._window / np.abs(factor.times * kl)
        low, high = np.searchsorted(GRID, exact - room), np.searchsorted(GRID, exact + room)
        some = np.flatnonzero(high > low)
        cost = values.bits[chosen[some]] + factor.bits
        for bits, grid in _LEVELS:
            before = np.append(np.searchsorted(grid, GRID, "left"), len(grid))
            inside = before[high[some]] - before[low[some]]
            self._add(cost + bits, inside.astype(np.float64))

    def _add(self, bits: F64, counts: F64) -> None:
        places = np.clip(np.ceil(bits), 0, 63).astype(np.int64)
        self._counts += np.bincount(places, weights=counts, minlength=64)[:64]

    def below(self, bits: float, room: float = 0.0) -> float:
        """Expected hits among conventions of so many bits or fewer.

        Args:
            bits: at most.
            room: how far off a hit may be, where that is more than the digits allow.
        """
        if not self._counts.any():
            return 0.0
        share = min(max(self._half, room) / self._window, 1.0)
        return float(self._counts[: int(np.ceil(bits)) + 1].sum() * share)

    @property
    def tried(self) -> float:
        """Values within the window."""
        return float(self._counts.sum())
