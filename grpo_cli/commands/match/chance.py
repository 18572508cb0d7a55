"""How many conventions hit a number by chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import Factor, Values, grids
from grpo_cli.commands.match.space.changes import BETAS
from grpo_cli.commands.match.typed import Typed

_WINDOW = 0.2
"""The part of the number around it in which tried values are counted."""
_AT_ITS_END = 1.0 + 2.0**-36
"""A value at the window's very end is in it, whichever way its sum was rounded."""


class Chance:
    """How many conventions hit a number of so many digits by chance, by their bits at most.

    Counted: the tried values within a fifth of the number on either side, times the share of that
    window which the number's digits leave.
    """

    def __init__(self, values: Values, factors: Sequence[Factor], target: Typed) -> None:
        self._counts = np.zeros(64)
        self._half = target.half
        self._window = _WINDOW * abs(target.value)
        for _, some in values.blocks() if target.value else ():
            for factor in factors:
                self._count(some, factor, target, self._window)

    def _count(self, values: Values, factor: Factor, target: Typed, window: float) -> None:
        off = factor.times * (values.policy - values.beta * values.kl) - target.value
        near = np.abs(off) <= window * _AT_ITS_END
        self._add(values.bits[near] + factor.bits, np.ones(int(near.sum())))
        chosen = np.flatnonzero(values.kl)
        kl = values.kl[chosen]
        exact = (values.policy[chosen] - target.value / factor.times) / kl
        room = _AT_ITS_END * window / np.abs(factor.times * kl)
        every = np.array(sorted(BETAS))
        low, high = np.searchsorted(every, exact - room), np.searchsorted(every, exact + room)
        some = np.flatnonzero(high > low)
        cost = values.bits[chosen[some]] + factor.bits
        for bits, grid in grids():
            before = np.searchsorted(grid, every, "left")
            before = np.append(before, len(grid))
            inside = before[high[some]] - before[low[some]]
            self._add(cost + bits, inside.astype(np.float64))

    def _add(self, bits: F64, counts: F64) -> None:
        places = np.clip(np.ceil(bits), 0, 63).astype(np.int64)
        self._counts += np.bincount(places, weights=counts, minlength=64)[:64]

    def below(self, bits: float, room: float = 0.0) -> float:
        """Expected hits among conventions of so many bits or fewer.

        Args:
            bits: those of the dearest.
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
