"""Which conventions give a number, with which sign, factor and β; and how many would by chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.changes import BETAS
from grpo_cli.commands.match.typed import Typed

FLOAT32 = 2.0**-23
_ROUNDING = 1e-14
"""How far off our own sums may be, relatively."""


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


@dataclass(frozen=True)
class Values:
    """U distinct conventions on the data.

    Attributes:
        policy: [U] J without the KL.
        kl: [U] what β multiplies, where β is solved for; else 0.
        beta: [U] the row's own β.
        size: [U] the magnitude that J is made of.
        bits: [U] the least that one of its names costs.
    """

    policy: F64
    kl: F64
    beta: F64
    size: F64
    bits: F64

    def blocks(self) -> Iterator[tuple[int, Values]]:
        """Some at a time, so that what is made of them takes little memory; where each begins."""
        columns = self.policy, self.kl, self.beta, self.size, self.bits
        for start in range(0, len(self.policy), _BLOCK):
            yield start, Values(*(one[start : start + _BLOCK] for one in columns))


_BLOCK = 1 << 15


@dataclass(frozen=True)
class Hits:
    """What fits: [H] conventions, factors, β (nan: the row's own)."""

    convention: NDArray[np.int64]
    factor: NDArray[np.int64]
    beta: F64


def hits(values: Values, factors: Sequence[Factor], target: Typed) -> Hits:
    """What gives the number, to its digits."""
    parts = [
        (start + found, np.full(len(found), at), beta)
        for start, some in values.blocks()
        for at, factor in enumerate(factors)
        for found, beta in (_plain(some, factor, target), *_solved(some, factor, target))
    ]
    if not parts:
        return Hits(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Hits(*(np.concatenate(column) for column in zip(*parts, strict=True)))


Fitting = tuple[NDArray[np.int64], F64]
"""Conventions, and the β of each."""


def _plain(values: Values, factor: Factor, target: Typed) -> Fitting:
    """With the row's own β."""
    far = np.abs(factor.times * (values.policy - values.beta * values.kl) - target.value)
    found = np.flatnonzero(far <= target.half + FLOAT32 * abs(factor.times) * values.size)
    return found, np.full(len(found), np.nan)


def rough_bits(off: F64, half: float, size: F64) -> F64:
    """Bits for values that are off by more than the digits allow, as sums in float32 may be.

    Such a number may be anywhere in that wider room: it is the less likely, the wider that is.
    """
    sure = np.maximum(1.000001 * half, _ROUNDING * size)
    wider = np.log2(np.maximum(FLOAT32 * size / sure, 16.0))
    return np.where(off > sure, wider, 0.0)


def _solved(values: Values, factor: Factor, target: Typed) -> Iterator[Fitting]:
    """With a round β that makes it fit: J is linear in β."""
    chosen = np.flatnonzero(values.kl)
    if not len(chosen):
        return
    kl = values.kl[chosen]
    exact = (values.policy[chosen] - target.value / factor.times) / kl
    room = target.half / np.abs(factor.times * kl)
    some = np.flatnonzero(_near_any(exact, room))
    chosen, exact, room = chosen[some], exact[some], room[some]
    taken = np.zeros(len(chosen), dtype=bool)
    for _, grid in grids():
        nearest = grid[np.clip(np.searchsorted(grid, exact - room), 0, len(grid) - 1)]
        own = nearest == values.beta[chosen]
        fits = (np.abs(nearest - exact) <= room) & ~taken & ~own
        taken |= fits
        yield chosen[fits], nearest[fits]


def _near_any(exact: F64, room: F64) -> NDArray[np.bool_]:
    """Whether any β that is tried is near; some more, as this only leaves out what is far."""
    grid = np.array(sorted(BETAS))
    nearest = grid[np.clip(np.searchsorted(grid, exact - room), 0, len(grid) - 1)]
    near: NDArray[np.bool_] = np.abs(nearest - exact) <= 2.0 * room
    return near


def grid_bits() -> F64:
    """[1 + β] what each β costs, those in rising order; 0 for the row's own, which stands first."""
    return np.array([0.0, *(BETAS[beta] for beta in sorted(BETAS))])


@cache
def grids() -> list[tuple[float, F64]]:
    """The β that are tried, by what they cost."""
    levels = sorted(set(BETAS.values()))
    return [
        (level, np.array(sorted(beta for beta, bits in BETAS.items() if bits == level)))
        for level in levels
    ]
