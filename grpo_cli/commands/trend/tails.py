"""Quantiles of numbers that are never all in memory: counts of bins, which merge."""

from __future__ import annotations

import math
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64

I32 = NDArray[np.int32]

_DROPPED = 15
"""Bits of a single that are dropped: bins 1/256 wide, relative to the number."""
_WAITING = 1 << 13  # fewer numbers wait to be counted
_NEGATIVE = 1 << (31 - _DROPPED)
_NO_BINS: I32 = np.zeros(0, dtype=np.int32)
_NO_COUNTS: I64 = np.zeros(0, dtype=np.int64)
_FLOATS, _INTEGERS = Struct("2f"), Struct("2i")


def bins(values: F64) -> I32:
    """The bin of each number, in the order of the numbers."""
    found: I32 = values.astype(np.float32).view(np.int32) >> _DROPPED
    negative = found < 0  # of negative numbers the greater one has the smaller bits
    if negative.any():
        found[negative] = -_NEGATIVE - 1 - found[negative]
    return found


class Tail:
    """Counts of numbers by their bins: the leading bits in single precision, right to 0.2 %."""

    __slots__ = ("_bins", "_counts", "_held", "_waiting")

    def __init__(self) -> None:
        self._bins = _NO_BINS
        self._counts = _NO_COUNTS
        self._waiting: list[I32] = []
        self._held = 0

    def add(self, values: F64) -> None:
        """Adds the elements of an array."""
        self.add_bins(bins(values))

    def add_bins(self, found: I32) -> None:
        """Adds numbers of which the bins are known; the array must not change any more."""
        self._waiting.append(found)
        self._held += len(found)
        if self._held >= _WAITING:
            self._count_waiting()

    def merge(self, other: Tail) -> None:
        """Adds the numbers of another."""
        for found in other._waiting:
            self.add_bins(found)
        if len(other._bins):
            self._add_counts(other._bins, other._counts)

    def _count_waiting(self) -> None:
        if self._held:
            found, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting, self._held = [], 0
            self._add_counts(found, counts)

    def _add_counts(self, found: I32, counts: I64) -> None:
        every = np.concatenate((self._bins, found))
        self._bins, index = np.unique(every, return_inverse=True)
        weights = np.concatenate((self._counts, counts))
        self._counts = np.bincount(index, weights).astype(np.int64)

    def quantile(self, share: float) -> float | None:
        """The number that ``share`` of them do not exceed; None where there are none."""
        total = self._held + int(self._counts.sum())
        if not total:
            return None
        place = max(math.ceil(share * total), 1) - 1
        if not len(self._bins):
            return _middle(int(np.partition(np.concatenate(self._waiting), place)[place]))
        self._count_waiting()
        reached = np.cumsum(self._counts)
        return _middle(int(self._bins[np.searchsorted(reached, place, side="right")]))


def _middle(key: int) -> float:
    """The middle of a bin; the bins at 0 are 0."""
    if key in (0, -1):  # zero and minus zero, and numbers that underflow to them
        return 0.0
    first = (key if key >= 0 else -_NEGATIVE - 1 - key) << _DROPPED
    low, high = _FLOATS.unpack(_INTEGERS.pack(first, first + (1 << _DROPPED) - 1))
    return (low + high) / 2 if math.isfinite(high) else low
