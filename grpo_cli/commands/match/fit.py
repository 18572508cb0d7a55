"""Which conventions give a number, with which sign, factor and β; and how many would by chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        weight: [U] 2^−bits added up over its names.
    """

    policy: F64
    kl: F64
    beta: F64
    size: F64
    bits: F64
    weight: F64


@dataclass(frozen=True)
class Hits:
    """What fits: [H] conventions, factors, β (nan: the row's own), bits and weights."""

    convention: NDArray[np.int64]
    factor: NDArray[np.int64]
    beta: F64
    bits: F64
    weight: F64
    off: F64

    @classmethod
    def joined(cls, parts: Sequence[Hits]) -> Hits:
        """Several together."""
        names = ("convention", "factor", "beta", "bits", "weight", "off")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def hits(values: Values, factors: Sequence[Factor], target: Typed) -> Hits:
    """What gives the number, to its digits."""
    parts = []
    for at, factor in enumerate(factors):
        parts += [_plain(values, factor, at, target), *_solved(values, factor, at, target)]
    return Hits.joined(parts)


def _plain(values: Values, factor: Factor, at: int, target: Typed) -> Hits:
    """With the row's own β."""
    off = factor.times * (values.policy - values.beta * values.kl) - target.value
    far = np.abs(off)
    found = np.flatnonzero(far <= target.half + FLOAT32 * abs(factor.times) * values.size)
    rough = rough_bits(far[found], target.half, abs(factor.times) * values.size[found])
    return _made(values, found, at, factor, np.full(len(found), np.nan), rough, off[found])


def rough_bits(off: F64, half: float, size: F64) -> F64:
    """Bits for values that are off by more than the digits allow, as sums in float32 may be.

    Such a number may be anywhere in that wider room: it is the less likely, the wider that is.
    """
    sure = np.maximum(1.000001 * half, _ROUNDING * size)
    wider = np.log2(np.maximum(FLOAT32 * size / sure, 16.0))
    return np.where(off > sure, wider, 0.0)


def _solved(values: Values, factor: Factor, at: int, target: Typed) -> Iterator[Hits]:
    """With a round β that makes it fit: J is linear in β."""
    chosen = np.flatnonzero(values.kl)
    if not len(chosen):
        return
    kl = values.kl[chosen]
    exact = (values.policy[chosen] - target.value / factor.times) / kl
    room = target.half / np.abs(factor.times * kl)
    taken = np.zeros(len(chosen), dtype=bool)
    for bits, grid in grids():
        nearest = grid[np.clip(np.searchsorted(grid, exact - room), 0, len(grid) - 1)]
        own = np.abs(nearest - values.beta[chosen]) <= 1e-12 * nearest
        fits = (np.abs(nearest - exact) <= room) & ~taken & ~own
        taken |= fits
        found = chosen[fits]
        off = factor.times * (values.policy[found] - nearest[fits] * values.kl[found])
        cost = np.full(len(found), bits)
        yield _made(values, found, at, factor, nearest[fits], cost, off - target.value)


def grid_bits() -> F64:
    """[1 + β] what each β costs, those in rising order; 0 for the row's own, which stands first."""
    return np.array([0.0, *(BETAS[beta] for beta in sorted(BETAS))])


def grids() -> list[tuple[float, F64]]:
    """The β that are tried, by what they cost."""
    levels = sorted(set(BETAS.values()))
    return [
        (level, np.array(sorted(beta for beta, bits in BETAS.items() if bits == level)))
        for level in levels
    ]


def _made(
    values: Values,
    found: NDArray[np.int64],
    at: int,
    factor: Factor,
    beta: F64,
    more: F64,
    off: F64,
) -> Hits:
    cost = factor.bits + more
    return Hits(
        found,
        np.full(len(found), at),
        beta,
        values.bits[found] + cost,
        values.weight[found] * 2.0**-cost,
        off,
    )
