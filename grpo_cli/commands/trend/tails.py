"""Quantiles of numbers that are never all in memory: counts of bins, which merge."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64

Whole = NDArray[np.integer[Any]]

_DROPPED = 15
"""Bits of a single that are dropped: bins 1/256 wide, relative to the number."""
_SORTED = 1 << 14  # fewer numbers are sorted faster than their bins are gone through
_NEGATIVE = 1 << (31 - _DROPPED)


class Tail:
    """Counts of numbers by their size and sign. What is read of it is right to 0.2 %.

    Of each bin: the leading bits of its numbers in single precision, and how many there are.
    """

    __slots__ = ("_bins", "_counts")

    def __init__(self) -> None:
        self._bins: Whole = np.zeros(0, dtype=np.int32)
        self._counts: Whole = np.zeros(0, dtype=np.int64)

    def add(self, values: F64) -> None:
        """Adds the elements of an array."""
        bins = values.astype(np.float32).view(np.int32) >> _DROPPED
        if len(bins) < _SORTED:
            self._take(*np.unique(bins, return_counts=True))
            return
        lowest = int(bins.min(initial=0))
        counts = np.bincount(bins - lowest)
        kept = np.flatnonzero(counts)
        self._take((kept + lowest).astype(np.int32), counts[kept])

    def merge(self, other: Tail) -> None:
        """Adds the numbers of another."""
        self._take(other._bins, other._counts)

    def _take(self, bins: Whole, counts: Whole) -> None:
        if not len(self._bins):
            self._bins, self._counts = bins, counts
            return
        self._bins, places = np.unique(np.concatenate((self._bins, bins)), return_inverse=True)
        both = np.concatenate((self._counts, counts))
        self._counts = np.bincount(places, weights=both).astype(np.int64)

    def quantile(self, share: float) -> float | None:
        """The number that ``share`` of them do not exceed; None where there are none."""
        total = int(self._counts.sum())
        if not total:
            return None
        # Of negative numbers the greater one has the smaller bits.
        order = np.argsort(np.where(self._bins < 0, -_NEGATIVE - self._bins - 1, self._bins))
        reached = np.cumsum(self._counts[order])
        place = int(np.searchsorted(reached, max(math.ceil(share * total), 1)))
        return _middle(int(self._bins[order[place]]))


def _middle(key: int) -> float:
    """The middle of a bin; the bins at 0 are 0."""
    if key in (0, -_NEGATIVE):  # zero and minus zero, with what underflows beside them
        return 0.0
    ends = np.array([key << _DROPPED, (key << _DROPPED) + (1 << _DROPPED) - 1], dtype=np.int64)
    low, high = ends.astype(np.int32).view(np.float32).astype(np.float64).tolist()
    return (low + high) / 2 if math.isfinite(low + high) else low
