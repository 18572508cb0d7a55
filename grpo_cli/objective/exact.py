"""Sums that are exact until they are read, so that no order and no split changes a bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64

if TYPE_CHECKING:
    from fractions import Fraction

_HALF = 27  # a double's 53 bits as 26 high and 27 low ones: sums of halves stay exact
_FRACTION = 52  # bits after the leading one, which only normal numbers have
_SPECIAL = 0x7FF  # the exponent of what is not finite
_LOWEST = -1074  # the exponent of the last bit of the smallest doubles
_TOGETHER = 1 << 12  # numbers taken apart at once: numpy's overhead is small, and they in cache
_ROOM = 1 << 25  # so many halves of 27 bits add up to less than 2⁵³


class ExactSum:
    """A sum of doubles kept exactly, as an integer for each binary exponent.

    Adding and merging lose nothing, and ``value`` rounds once: the result depends on the multiset
    of the numbers alone. A sum that no longer is finite stays not finite.
    """

    __slots__ = ("_bins", "_broken", "_held", "_waiting")

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._broken = 0.0
        self._waiting: list[F64] = []
        self._held = 0

    def add(self, values: F64) -> None:
        """Adds the elements of an array, which must not change any more."""
        self._waiting.append(values)
        self._held += len(values)
        if self._held >= _TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """Takes apart what waits."""
        if self._waiting:
            values = np.concatenate(self._waiting, dtype=np.float64)
            self._waiting, self._held = [], 0
            for start in range(0, len(values), _ROOM):
                self._take(values[start : start + _ROOM])

    def _take(self, values: F64) -> None:
        bits = values.view(np.int64)
        exponents = (bits >> _FRACTION) & _SPECIAL
        if exponents.max() == _SPECIAL:
            finite = exponents != _SPECIAL
            self._broken += float(values[~finite].sum())
            bits, exponents = bits[finite], exponents[finite]
            if not len(bits):
                return
        whole = (bits & ((1 << _FRACTION) - 1)) | (np.minimum(exponents, 1) << _FRACTION)
        whole = np.where(bits < 0, -whole, whole)
        places = np.maximum(exponents, 1) - 1  # subnormal numbers have the exponent of the least
        lowest = int(places.min())
        places -= lowest
        high = whole >> _HALF
        self._keep(np.bincount(places, weights=high), lowest + _LOWEST + _HALF)
        self._keep(np.bincount(places, weights=whole - (high << _HALF)), lowest + _LOWEST)

    def _keep(self, sums: NDArray[Any], exponent: int) -> None:
        for key, part in enumerate(sums.tolist(), exponent):
            if part:
                self._bins[key] = self._bins.get(key, 0) + int(part)

    def merge(self, other: ExactSum) -> None:
        """Adds another sum."""
        for values in other._waiting:
            self.add(values)
        self._broken += other._broken
        for key, part in other._bins.items():
            self._bins[key] = self._bins.get(key, 0) + part

    def scaled(self) -> tuple[int, int]:
        """The sum as a whole number and the power of two that multiplies it."""
        self._settle()
        if not self._bins:
            return 0, 0
        lowest = min(self._bins)
        return sum(part << (key - lowest) for key, part in self._bins.items()), lowest

    def fraction(self) -> Fraction:
        """The sum as a rational number."""
        from fractions import Fraction  # slow to import, and few objectives need it

        whole, exponent = self.scaled()
        return Fraction(whole) * Fraction(2) ** exponent

    def value(self) -> float:
        """The sum, rounded once."""
        self._settle()
        if self._broken or math.isnan(self._broken):
            return self._broken
        whole, exponent = self.scaled()
        try:
            # Python divides whole numbers with one rounding, however long they are.
            return whole / (1 << -exponent) if exponent < 0 else float(whole << exponent)
        except OverflowError:
            return math.copysign(math.inf, whole)


def row_sums(rows: F64) -> F64:
    """[n] the sum of each row [n, k], whatever the order of its elements.

    Sorted, then added in twice the working precision (a correctly rounded sum but for ties that a
    third double would have to break), so that equal multisets give equal bits.

    References:
        Ogita, Rump and Oishi, Accurate Sum and Dot Product, 2005 (Sum2).
    """
    ordered = np.sort(rows, axis=1)
    totals = np.add.accumulate(ordered, axis=1)
    before, after, added = totals[:, :-1], totals[:, 1:], ordered[:, 1:]
    shadow = after - before
    errors = (before - (after - shadow)) + (added - shadow)
    # What ``sum`` makes of a row depends on its length only, so it is the same for equal rows.
    return totals[:, -1] + errors.sum(axis=1)
