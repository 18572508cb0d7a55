"""Rows that look padded to one length with log-probs of exactly 0, which no mask leaves out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments

_SPREAD = 3
"""The least difference between the longest and the shortest run of a record."""


def runs(responses: Segments, same: NDArray[np.bool_], *, end: bool) -> I64:
    """Returns [R] how many tokens in a row are ``same`` at the end or beginning of each."""
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


def look_padded(records: Segments, lengths: I64, zeros: I64) -> NDArray[np.bool_]:
    """Returns [M] whether a record's responses look padded to one length.

    They have one length, most have zeros at the edge, and the numbers of these differ, as what
    is missing to one length does; a policy that is sure of its last word has one zero in each.

    Args:
        lengths: [R] tokens of each response.
        zeros: [R] how many log-probs of exactly 0 are at its edge.
    """
    found = 2 * records.sum((zeros > 0).astype(np.int64)) > records.lengths
    for record in np.flatnonzero(found).tolist():
        start = int(records.starts[record])
        part = slice(start, start + int(records.lengths[record]))
        found[record] = np.ptp(lengths[part]) == 0 and np.ptp(zeros[part]) >= _SPREAD
    return found


def counts_padding(records: Segments, responses: Segments, log_probs: F64) -> bool:
    """Whether a record looks padded behind its responses."""
    if not responses.total:
        return False
    ends = log_probs.take(responses.starts + responses.lengths - 1, mode="clip") == 0.0
    if not (2 * records.sum(ends.astype(np.int64)) > records.lengths).any():
        return False
    zeros = runs(responses, log_probs == 0.0, end=True)
    return bool(look_padded(records, responses.lengths, zeros).any())
