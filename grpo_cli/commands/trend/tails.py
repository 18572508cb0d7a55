"""Quantiles of numbers that are never all in memory: counts of bins, which merge."""

from __future__ import annotations

import math
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.trend.sums import NO_NUMBER, Ragged

_DROPPED = 15
"""Bits of a single that are dropped: bins 1/256 wide, relative to the number."""
_NEGATIVE = 1 << (31 - _DROPPED)
_FLOATS, _INTEGERS = Struct("2f"), Struct("2i")


def bins(values: F64) -> NDArray[np.int32]:
    """The bin of each number, in the order of the numbers: leading bits, right to 0.2 %."""
    found: NDArray[np.int32] = values.astype(np.float32).view(np.int32) >> _DROPPED
    negative = found < 0  # of negative numbers the greater one has the smaller bits
    if negative.any():
        found[negative] = -_NEGATIVE - 1 - found[negative]
    return found


def quantiles(found: Ragged, share: float) -> F64:
    """[S] the number that ``share`` of each step's do not exceed; NaN where there are none."""
    places = np.maximum(np.ceil(share * found.widths), 1) - 1
    if found.times is None and (places >= found.widths - 1).all():  # the largest of each
        keys = found.reduced(np.maximum, 0).tolist()
        widths = found.widths.tolist()
        return np.array([_middle(k) if n else NO_NUMBER for k, n in zip(keys, widths, strict=True)])
    begin, made = 0, []
    for width in found.widths.tolist():
        part = slice(begin, begin + width)
        times = None if found.times is None else found.times[part]
        made.append(_quantile(found.values[part], times, share) if width else NO_NUMBER)
        begin += width
    return np.array(made)


def _quantile(keys: NDArray[np.int32], times: NDArray[np.int64] | None, share: float) -> float:
    total = len(keys) if times is None else int(times.sum())
    place = max(math.ceil(share * total), 1) - 1
    if times is None:
        return _middle(int(np.partition(keys, place)[place]))
    order = np.argsort(keys)
    reached = np.cumsum(times[order])
    return _middle(int(keys[order[np.searchsorted(reached, place, side="right")]]))


def _middle(key: int) -> float:
    """The middle of a bin; the bins at 0 are 0."""
    if key in (0, -1):  # zero and minus zero, and numbers that underflow to them
        return 0.0
    first = (key if key >= 0 else -_NEGATIVE - 1 - key) << _DROPPED
    low, high = _FLOATS.unpack(_INTEGERS.pack(first, first + (1 << _DROPPED) - 1))
    return (low + high) / 2 if math.isfinite(high) else low
