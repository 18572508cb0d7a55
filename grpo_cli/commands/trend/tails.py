"""Quantiles of numbers that are never all in memory: counts of bins, which merge."""

from __future__ import annotations

import math
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64

Whole = NDArray[np.integer[Any]]

_DROPPED = 15
"""Bits of a single that are dropped: bins 1/256 wide, relative to the number."""
_FEW = 1 << 13  # fewer numbers wait
_EACH = 16
_NEGATIVE = 1 << (31 - _DROPPED)
_FLOATS, _WHOLE = Struct("2f"), Struct("2i")
_NONE: Whole = np.zeros(0, dtype=np.int32)
_NO_SIGNS = np.zeros(0, dtype=np.uint8)


def bins(values: F64) -> Whole:
    """The bin of each number."""
    return values.astype(np.float32).view(np.int32) >> _DROPPED


class Tail:
    """Counts of numbers by their size and sign. What is read of it is right to 0.2 %.

    Of each bin: the leading bits of its numbers in single precision, and how many there are. Few
    numbers are not counted: their bins wait.
    """

    __slots__ = ("_bins", "_counts", "_held", "_waiting")

    def __init__(self) -> None:
        self._bins: Whole = _NONE
        self._counts: Whole = _NONE
        self._waiting: list[Whole] = []
        self._held = 0

    def add(self, values: F64) -> None:
        """Adds the elements of an array."""
        self.add_bins(bins(values))

    def add_bins(self, found: Whole) -> None:
        """Adds numbers of which the bins are known; the array must not change any more."""
        self._waiting.append(found)
        self._held += len(found)
        if self._held >= _FEW:
            self._settle()

    def merge(self, other: Tail) -> None:
        """Adds the numbers of another."""
        for found in other._waiting:
            self.add_bins(found)
        self._take(other._bins, other._counts)

    def _settle(self) -> None:
        """Counts what waits."""
        if self._held:
            found = self._all_waiting()
            self._waiting, self._held = [], 0
            self._take(found, None)

    def _all_waiting(self) -> Whole:
        if len(self._waiting) == 1:
            return self._waiting[0]
        return np.concatenate(self._waiting) if self._waiting else _NONE

    def _take(self, bins: Whole, counts: Whole | None) -> None:
        """Adds so many of each bin, one where no counts are given.

        They are counted by size, then sign: what a run has lies close together then.
        """
        if not len(bins):
            return
        keys, known = _folded(bins), _folded(self._bins)
        lowest = int(min(keys.min(), known.min(initial=keys[0])))
        size = int(known.max(initial=lowest)) - lowest + 1
        dense = np.bincount(keys - lowest, weights=counts, minlength=size).astype(np.int64)
        dense[known - lowest] += self._counts
        kept = np.flatnonzero(dense)
        self._bins, self._counts = _unfolded((kept + lowest).astype(np.int32)), dense[kept]

    def __getstate__(self) -> tuple[bytes, bytes, bytes, bytes]:
        """What travels: of what waits two bytes each, and a bit for the sign where any has one."""
        found = self._all_waiting()
        sizes, negative = (found & (_NEGATIVE - 1)).astype(np.uint16), found < 0
        signs = np.packbits(negative) if negative.any() else _NO_SIGNS
        counted = self._bins.astype(np.int32).tobytes(), self._counts.astype(np.int64).tobytes()
        return sizes.tobytes(), signs.tobytes(), *counted

    def __setstate__(self, state: tuple[bytes, bytes, bytes, bytes]) -> None:
        sizes = np.frombuffer(state[0], np.uint16).astype(np.int32)
        if state[1]:
            signs = np.unpackbits(np.frombuffer(state[1], np.uint8), count=len(sizes))
            sizes -= signs.astype(np.int32) * _NEGATIVE
        self._waiting, self._held = [sizes], len(sizes)
        self._bins, self._counts = (
            np.frombuffer(state[2], np.int32),
            np.frombuffer(state[3], np.int64),
        )

    def quantile(self, share: float) -> float | None:
        """The number that ``share`` of them do not exceed; None where there are none."""
        if self._held and len(self._bins):
            self._settle()
        total = self._held or int(self._counts.sum())
        if not total:
            return None
        place = max(math.ceil(share * total), 1) - 1
        if self._held:
            return _middle(_at(self._all_waiting(), place))
        order = np.argsort(_turned(self._bins))
        reached = np.cumsum(self._counts[order])
        return _middle(int(self._bins[order[np.searchsorted(reached, place, side="right")]]))


def _at(bins: Whole, place: int) -> int:
    """The bin of the number that so many precede."""
    found = _near_top(bins, len(bins) - place)
    if found is None:
        found = int(np.partition(bins, place)[place])
    if found >= 0:  # then whatever is negative stands before it, in whichever order
        return found
    return int(_turned(np.partition(_turned(bins), place)[place]))


def _near_top(bins: Whole, place: int) -> int | None:
    """The element that is so far from the top, 1 for the top; None where too many may be above it.

    The second largest of every sixteenth is a bound that some thirty elements pass.
    """
    some = bins[::_EACH]
    if place > _EACH or len(some) < _EACH:
        return None
    above = bins[bins >= np.partition(some, -2)[-2]]
    return int(np.sort(above)[-place]) if len(above) >= place else None


def _folded(bins: Whole) -> Whole:
    """Twice the size of a bin, and one more where it is negative."""
    folded: Whole = ((bins & (_NEGATIVE - 1)) << 1) | (bins < 0)
    return folded


def _unfolded(keys: Whole) -> Whole:
    unfolded: Whole = (keys >> 1) - (keys & 1) * _NEGATIVE
    return unfolded


def _turned(bins: Whole) -> Whole:
    """Bins, or what stands for them, in the order of their numbers; of that, the bins again.

    Of negative numbers the greater one has the smaller bits.
    """
    turned: Whole = np.where(bins < 0, -_NEGATIVE - bins - 1, bins)
    return turned


def _middle(key: int) -> float:
    """The middle of a bin; the bins at 0 are 0."""
    if key in (0, -_NEGATIVE):  # zero and minus zero, with what underflows beside them
        return 0.0
    first = key << _DROPPED
    low, high = _FLOATS.unpack(_WHOLE.pack(first, first + (1 << _DROPPED) - 1))
    return (low + high) / 2 if math.isfinite(high) else low
