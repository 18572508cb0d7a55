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
    made, begin = [], 0
    for width in found.widths.tolist():
        part, begin = slice(begin, begin + width), begin + width
        if not width:
            made.append(NO_NUMBER)
            continue
        keys = found.values[part]
        order = np.argsort(keys)
        reached = np.arange(1, width + 1)
        if found.times is not None:
            reached = np.cumsum(found.times[part][order])
        place = max(math.ceil(share * int(reached[-1])), 1) - 1
        made.append(_middle(int(keys[order[np.searchsorted(reached, place, side="right")]])))
    return np.array(made)


def _middle(key: int) -> float:
    """The middle of a bin; the bins at 0 are 0."""
    if key in (0, -1):  # zero and minus zero, and numbers that underflow to them
        return 0.0
    first = (key if key >= 0 else -_NEGATIVE - 1 - key) << _DROPPED
    low, high = _FLOATS.unpack(_INTEGERS.pack(first, first + (1 << _DROPPED) - 1))
    return (low + high) / 2 if math.isfinite(high) else low
