"""Sums that are exact until they are read, so that no order and no split changes a bit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64

if TYPE_CHECKING:
    from fractions import Fraction

Key = TypeVar("Key", bound=Hashable)

_FRACTION = 52  # bits after the leading one, which only normal numbers have
_SPECIAL = 0x7FF  # the exponent of what is not finite
_LARGE = 0x700  # the exponent, 2^769, from which on sums of doubles might overflow
_DOWN = 600  # the power of two that such numbers are divided by
_LOWEST = -1075  # a double is a multiple of 2 to the power of this and its exponent
_HALF = 27  # a double's 53 bits as 26 high and 27 low ones: sums of halves stay exact
_LOW_BITS = (1 << _HALF) - 1
_BIN = 3  # 2³ exponents share a bin, so halves have up to 34 bits
_TOGETHER = 1 << 12  # numbers split at once: numpy's overhead is small, and they in cache
_AT_ONCE = 256  # so many numbers are added faster by ``math.fsum``, which rounds once as well
_TRAVELS = 64  # so many numbers take no more than the whole numbers that they add up to
_ROOM = 1 << 19  # so many halves of 34 bits add up to no more than 2⁵³

_NONE: F64 = np.zeros(0)


class ExactSum:
    """A sum of doubles kept exactly, as an integer for every eight binary exponents.

    Adding and merging lose nothing, and ``value`` rounds once: the result depends on the multiset
    of the numbers alone. A sum that no longer is finite stays not finite.
    """

    __slots__ = ("_bins", "_broken", "_held", "_rounded", "_waiting")

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._broken = 0.0
        self._waiting: list[F64] = []
        self._held = 0
        self._rounded: float | None = None

    def add(self, values: F64) -> None:
        """Adds the elements of an array, which must not change any more."""
        self._rounded = None
        self._waiting.append(values)
        self._held += len(values)
        if self._held >= _TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """Adds the waiting numbers to the bins."""
        if self._waiting:
            values = np.concatenate(self._waiting, dtype=np.float64)
            self._waiting, self._held = [], 0
            for start in range(0, len(values), _ROOM):
                self._take(values[start : start + _ROOM])

    def _take(self, values: F64, power: int = 0) -> None:
        """Adds each value times 2 to the ``power``."""
        bits = values.view(np.int64)
        exponents = (bits >> _FRACTION) & _SPECIAL
        if exponents.max() >= _LARGE:
            self._take_large(values, exponents)
            return
        bins = exponents >> _BIN
        lowest = int(bins.min())
        bins -= lowest
        high = (bits & ~_LOW_BITS).view(np.float64)
        highs, lows = np.bincount(bins, weights=high), np.bincount(bins, weights=values - high)
        for number, (upper, lower) in enumerate(
            zip(highs.tolist(), lows.tolist(), strict=True), lowest
        ):
            if upper or lower:
                unit = (number << _BIN) + _LOWEST
                whole = int(math.ldexp(upper, -unit - _HALF)) << _HALF
                self._keep(whole + int(math.ldexp(lower, -unit)), unit + power)

    def _take_large(self, values: F64, exponents: NDArray[np.int64]) -> None:
        """The same where some are so large that their sum might overflow, or are not finite."""
        special = exponents == _SPECIAL
        if special.any():
            self._broken += float(values[special].sum())
        large = (exponents >= _LARGE) & ~special
        if large.any():
            self._take(values[large] * 2.0**-_DOWN, _DOWN)
        if (exponents < _LARGE).any():
            self._take(values[exponents < _LARGE])

    def _keep(self, part: int, exponent: int) -> None:
        self._bins[exponent] = self._bins.get(exponent, 0) + part

    def merge(self, other: ExactSum) -> None:
        """Adds another sum."""
        self._rounded = None
        for values in other._waiting:
            self.add(values)
        self._broken += other._broken
        for exponent, part in other._bins.items():
            self._keep(part, exponent)

    def __getstate__(self) -> tuple[dict[int, int], float, bytes]:
        """What travels: some hundred bytes, whatever waits."""
        if self._held > _TRAVELS:
            self._settle()
        if len(self._waiting) == 1 and self._waiting[0].dtype == np.float64:
            return self._bins, self._broken, self._waiting[0].tobytes()
        waiting = np.concatenate(self._waiting, dtype=np.float64) if self._waiting else _NONE
        return self._bins, self._broken, waiting.tobytes()

    def __setstate__(self, state: tuple[dict[int, int], float, bytes]) -> None:
        self._bins, self._broken, waiting = state
        self._waiting, self._held, self._rounded = [], 0, None
        if waiting:
            self.add(np.frombuffer(waiting))

    def scaled(self) -> tuple[int, int]:
        """The sum as a whole number and the power of two that multiplies it."""
        self._settle()
        if not self._bins:
            return 0, 0
        lowest = min(self._bins)
        return sum(part << (key - lowest) for key, part in self._bins.items()), lowest

    def fraction(self) -> Fraction:
        """The sum as a rational number."""
        from fractions import Fraction  # slow to import, and seldom needed

        whole, exponent = self.scaled()
        return Fraction(whole) * Fraction(2) ** exponent

    def value(self) -> float:
        """The sum, rounded once; rows and totals ask for it many times."""
        if self._rounded is None:
            self._rounded = self._round()
        return self._rounded

    def _round(self) -> float:
        if self._waiting and not self._bins and not self._broken and self._held <= _AT_ONCE:
            total = _added_at_once(self._waiting)
            if total is not None:
                return total
        self._settle()
        if self._broken or math.isnan(self._broken):
            return self._broken
        whole, exponent = self.scaled()
        try:
            # Python divides whole numbers with one rounding, however long they are.
            return whole / (1 << -exponent) if exponent < 0 else float(whole << exponent)
        except OverflowError:
            return math.inf if whole > 0 else -math.inf


class ExactSums(defaultdict[Key, ExactSum]):
    """Sums by what they are of; they merge."""

    def __init__(self, made: type[ExactSum] = ExactSum) -> None:
        super().__init__(made)

    def merge(self, other: Mapping[Key, ExactSum]) -> None:
        """Adds other sums, each to the one of its key."""
        for key, part in other.items():
            self[key].merge(part)


def _added_at_once(parts: list[F64]) -> float | None:
    """The sum of numbers, rounded once; None where one is not finite, or their sum."""
    try:
        several = len(parts) > 1
        values = [one for part in parts for one in part.tolist()] if several else parts[0].tolist()
        total = math.fsum(values)
    except (OverflowError, ValueError):
        return None
    return total + 0.0 if math.isfinite(total) else None


def added(parts: list[float]) -> float:
    """The sum, rounded once; inf or NaN where it is too large, or infinite both ways."""
    try:
        return math.fsum(parts)
    except (OverflowError, ValueError):  # OverflowError also where the sum itself is finite
        total = ExactSum()
        with np.errstate(invalid="ignore"):
            total.add(np.array(parts))
            return total.value()


def row_sums(rows: F64) -> F64:
    """[n] the sum of each row [n, k], whatever the order of its elements.

    Sorted, then added in twice the working precision (a correctly rounded sum but for ties that a
    third double would have to break), so that equal multisets give equal bits.

    References:
        Ogita, Rump and Oishi, Accurate Sum and Dot Product, 2005 (Sum2).
    """
    totals, errors = _running(np.sort(rows, axis=1))
    # What ``sum`` makes of a row depends on its length only, so it is the same for equal rows.
    return totals + errors.sum(axis=1)


def segment_sums(values: F64, lengths: I64) -> F64:
    """[S] the sum of each segment of values [N], rounded once."""
    if len(lengths) == 1:  # of a record alone numpy's calls take ten times as long
        return np.array([added(values.tolist()) + 0.0])
    found, starts = np.zeros(len(lengths)), np.cumsum(lengths) - lengths
    for length in (np.flatnonzero(np.bincount(lengths)[1:]) + 1).tolist():
        alike = np.flatnonzero(lengths == length)
        each = len(alike) == len(found)
        at = slice(None) if each else starts[alike, None] + np.arange(length)
        rows = values[at].reshape(-1, length)
        sums, sure = _rounded_sums(rows)
        sure |= (length <= 2) & np.isfinite(sums)  # one addition rounds once
        sums[~sure] = [*map(added, rows[~sure].tolist())]
        found[alike] = sums
    return found


def _rounded_sums(rows: F64) -> tuple[F64, NDArray[np.bool_]]:
    """[n] the sum of each row [n, k], and whether it is sure to be the exact sum, rounded once.

    Halves are added to each other, for all rows at once; what each addition loses is kept.
    """
    parts = np.ascontiguousarray(rows.T)
    rest, size = np.zeros((2, len(rows)))
    with np.errstate(over="ignore", invalid="ignore"):
        while len(parts) > 1:
            half = len(parts) // 2
            totals, lost = _two_sum(parts[:half], parts[half : 2 * half])
            rest += lost.sum(axis=0)
            size += np.abs(lost).sum(axis=0)
            parts = np.concatenate((totals, parts[2 * half :]))
        slack = size * (rows.shape[1] * 2.0**-50)
        return parts[0] + rest + 0.0, parts[0] + (rest - slack) == parts[0] + (rest + slack)


def _two_sum(left: F64, right: F64) -> tuple[F64, F64]:
    """The rounded sum, and what rounding lost of it (Knuth, TAOCP 2, 4.2.2, theorem B)."""
    total = left + right
    shadow = total - left
    return total, (left - (total - shadow)) + (right - shadow)


def _running(rows: F64) -> tuple[F64, F64]:
    """[n] the rounded sums of rows, and [n, k − 1] what each addition lost."""
    totals = np.add.accumulate(rows, axis=1)
    return totals[:, -1], _two_sum(totals[:, :-1], rows[:, 1:])[1]


_SLACK = 2.0**-95  # of the largest element: more than twice the working precision can be wrong by


def row_offsets(rows: F64) -> F64:
    """[n, k] each element less the mean of its row, rounded once.

    The mean is kept as two doubles, so that a large common offset of the elements costs no digit.
    Where even that could round wrongly, rational numbers decide.
    """
    size = rows.shape[1]
    sums, errors = _running(np.sort(rows, axis=1))
    mean = sums / size
    product, lost = two_product(mean, np.full_like(mean, size))
    rest = (sums - product) - lost + errors.sum(axis=1)
    offsets = rows - mean[:, None]
    shadow = offsets - rows
    below = (rows - (offsets - shadow)) - (mean[:, None] + shadow) - (rest / size)[:, None]
    result = offsets + below
    slack = _SLACK * size * np.abs(rows).max(axis=1, keepdims=True)
    sure = offsets + (below + slack) == offsets + (below - slack)
    sure |= ((rest == 0.0) & ~errors.any(axis=1))[:, None]  # the mean is a double
    if size.bit_count() == 1 and not sure.all():
        sure |= _exact(rows, mean, offsets, errors) & (mean * size == sums)[:, None]
    for row in np.flatnonzero(~sure.all(axis=1)).tolist():
        result[row] = _rational_offsets(rows[row].tolist())
    return result


def _exact(rows: F64, mean: F64, offsets: F64, errors: F64) -> NDArray[np.bool_]:
    """[n, k] whether ``offsets + below`` of 2ᵐ elements a row is exact but for its one rounding.

    Ties are frequent there: the mean has some bits more than the elements. Dividing by the size
    loses nothing but where numbers are next to 0.
    """
    size = rows.shape[1]
    added = np.add.accumulate(errors, axis=1)
    before, after, more = added[:, :-1], added[:, 1:], errors[:, 1:]
    whole = ((after - before == more) & (after - more == before)).all(axis=1, keepdims=True)
    shadow = offsets - rows
    first, second = rows - (offsets - shadow), mean[:, None] + shadow
    rest = added[:, -1:] / size
    whole = whole & (rest * size == added[:, -1:]) & (_two_sum(first, -second)[1] == 0.0)
    found: NDArray[np.bool_] = whole & (_two_sum(first - second, -rest)[1] == 0.0)
    return found


def _rational_offsets(row: list[float]) -> list[float]:
    from fractions import Fraction

    values = [Fraction(value) for value in row]
    mean = sum(values) / len(values)
    return [float(value - mean) for value in values]


def two_product(left: F64, right: F64) -> tuple[F64, F64]:
    """``left·right`` as the rounded product and its rounding error, so that their sum is exact.

    References:
        Dekker, A floating-point technique for extending the available precision, 1971.
    """
    product = left * right
    left_high, left_low = _split(left)
    right_high, right_low = _split(right)
    error = left_high * right_high - product
    error += left_high * right_low
    error += left_low * right_high
    return product, error + left_low * right_low


def _split(values: F64) -> tuple[F64, F64]:
    scaled = values * 134217729.0  # 2²⁷ + 1
    high = scaled - (scaled - values)
    return high, values - high
