"""The first and last tokens of responses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64, Segments


def edges(responses: Segments, *, end: bool) -> I64:
    """[R] the index of each response's last (or first) token; any token for an empty one."""
    if end:
        return responses.starts + responses.lengths - 1
    return np.minimum(responses.starts, responses.total - 1)


def runs(responses: Segments, same: NDArray[np.bool_], *, end: bool) -> I64:
    """[R] how many tokens in a row are ``same`` up to the end (or from the beginning) of each."""
    broken = np.flatnonzero(~same)
    if not len(broken):
        return responses.lengths.copy()
    starts, ends = responses.starts, responses.starts + responses.lengths
    if end:
        before = np.searchsorted(broken, ends) - 1
        last = np.where(before >= 0, broken[np.maximum(before, 0)], -1)
        found: I64 = ends - 1 - np.maximum(last, starts - 1)
    else:
        after = np.searchsorted(broken, starts)
        first = np.where(after < len(broken), broken[np.minimum(after, len(broken) - 1)], 1 << 60)
        found = np.minimum(first, ends) - starts
    return found


def equal_runs(responses: Segments, values: NDArray[np.generic], *, end: bool) -> I64:
    """[R] how many tokens at the end (or beginning) of each response have the same value."""
    if not len(values):
        return np.zeros(responses.count, dtype=np.int64)
    same = values == np.repeat(values[edges(responses, end=end)], responses.lengths)
    return runs(responses, same, end=end)
