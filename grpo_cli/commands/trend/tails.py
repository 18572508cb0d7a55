"""Quantiles of numbers that are never all in memory: counts of bins, which merge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.trend.sums import NO_NUMBER, Ragged

_DROPPED = 15
"""Bits of a single that are dropped: bins 1/256 wide, relative to the number."""
_NEGATIVE = 1 << (31 - _DROPPED)


def bins(values: F64) -> NDArray[np.int32]:
    """The bin of each number, in the order of the numbers: leading bits, right to 0.2 %."""
    found: NDArray[np.int32] = values.astype(np.float32).view(np.int32) >> _DROPPED
    negative = found < 0  # of negative numbers the greater one has the smaller bits
    if negative.any():
        found[negative] = -_NEGATIVE - 1 - found[negative]
    return found


def quantiles(found: Ragged, share: float) -> F64:
    """[S] the number that ``share`` of each step's do not exceed; NaN where there are none."""
    steps, filled = np.repeat(np.arange(len(found.widths)), found.widths), found.widths > 0
    order = np.argsort((steps << 32) + found.values)  # bins have 17 bits and a sign
    times = np.ones(len(order), dtype=np.int64) if found.times is None else found.times[order]
    reached = np.concatenate(([0], np.cumsum(times)))
    ends = np.cumsum(found.widths)
    before, until = reached[(ends - found.widths)[filled]], reached[ends[filled]]
    place = np.maximum(np.ceil(share * (until - before)), 1.0).astype(np.int64) - 1
    numbers = np.full(len(filled), NO_NUMBER)
    at = np.searchsorted(reached[1:], before + place, side="right")
    numbers[filled] = _middles(found.values[order[at]])
    return numbers


def _middles(keys: NDArray[np.int32]) -> F64:
    """The middle of each bin; the bins at 0 are 0."""
    first = np.where(keys >= 0, keys, -_NEGATIVE - 1 - keys) << _DROPPED
    both = np.array([first, first + ((1 << _DROPPED) - 1)], dtype=np.int32)
    with np.errstate(invalid="ignore"):  # the last bin has infinity and NaN
        low, high = both.view(np.float32).astype(np.float64)
    middle = np.where(np.isfinite(high), (low + high) / 2, low)
    return np.where(np.isin(keys, (0, -1)), 0.0, middle)  # zero, and what underflows to it
