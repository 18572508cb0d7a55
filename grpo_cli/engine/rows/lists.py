"""Arrays of a whole chunk → lists of values that can be printed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.arithmetic.exact_sums import added


def bounds(segments: Segments) -> list[int]:
    """[S+1] where each segment begins, and where the last one ends."""
    return [*segments.starts.tolist(), segments.total]


def plain(values: F64) -> list[Any]:
    """A list without -0.0."""
    return (values + 0.0).tolist()


def whole(values: NDArray[Any]) -> list[int | float]:
    """A list in which whole numbers are whole."""
    return [int(one) if float(one).is_integer() else one for one in values.tolist()]


def fraction(parts: list[Any], wholes: list[int]) -> list[float | None]:
    """Each part of its whole; None where there is nothing."""
    return [part / whole if whole else None for part, whole in zip(parts, wholes, strict=True)]


def extreme(which: np.ufunc, values: F64, segments: Segments) -> list[float | None]:
    """[S] the least or greatest element of each segment; None for an empty one."""
    filled = np.flatnonzero(segments.lengths)
    result: list[float | None] = [None] * segments.count
    if len(filled):
        found = which.reduceat(values, segments.starts[filled]).tolist()
        for place, value in zip(filled.tolist(), found, strict=True):
            result[place] = value
    return result


def exact_sums(values: F64, segments: Segments) -> list[float]:
    """[S] the exactly rounded sum of each segment's elements; inf where it is too large."""
    flat, cuts = values.tolist(), bounds(segments)
    return [added(flat[cuts[at] : cuts[at + 1]]) for at in range(segments.count)]


def one_number(values: NDArray[Any]) -> bool:
    """Whether all of some numbers of 8 bytes are the same, to the bit."""
    bits = values.view(np.int64)
    return bool(bits[0] == bits[-1] and (bits == bits[0]).all())


def kept(written: list[Any], positions: NDArray[Any]) -> list[Any]:
    """The elements of a response's list that count."""
    if len(written) == len(positions):
        return written
    return [written[position] for position in positions.tolist()]


same = object()
"""Stands for whatever value all rows of a table have in common."""
