"""A line through points, as Braille dots or as ASCII."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Braille: what the dot of each row and column adds to U+2800."""


def column_of(index: int, count: int, room: int) -> int:
    """Where an index stands among ``room`` columns."""
    return round(index * (room - 1) / (count - 1)) if count > 1 else 0


class Line(NamedTuple):
    """Points from 0 (below) to 1, as they are drawn."""

    shares: F64

    def spans(self, columns: int, rows: int) -> Iterator[tuple[int, int, int]]:
        """Each column that is drawn, and from which row to which, from above."""
        count = len(self.shares)
        points = [
            (column_of(at, count, columns), round((1.0 - float(share)) * (rows - 1)))
            for at, share in enumerate(self.shares)
            if math.isfinite(share)
        ]
        known = [at for at, share in enumerate(self.shares) if math.isfinite(share)]
        for column, row in points:
            yield column, row, row
        for (at, start), (after, end) in pairwise(zip(known, points, strict=True)):
            if after == at + 1:
                yield from _between(start, end)


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    """The columns of a line from one point to the next, without gaps."""
    (left, first), (right, last) = start, end
    steps = max(right - left, 1)
    before = first
    for step in range(1, steps + 1):
        row = round(first + (last - first) * step / steps)
        yield left + min(step, right - left), min(before, row), max(before, row)
        before = row


def line_of(numbers: F64, low: float, high: float) -> Line:
    """Numbers between two ends as a line; in the middle where these are one."""
    if not high > low:
        return Line(np.where(np.isfinite(numbers), 0.5, np.nan))
    return Line((numbers - low) / (high - low))


def braille_rows(line: Line, width: int, height: int) -> list[str]:
    """The line in ``height`` rows of Braille letters, each two dots wide and four high."""
    cells = np.zeros((height, width), dtype=np.int64)
    for column, first, last in line.spans(2 * width, 4 * height):
        for row in range(first, last + 1):
            cells[row // 4, column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells.tolist()]


def ascii_rows(line: Line, width: int, height: int) -> list[str]:
    """The line in ``height`` rows of stars."""
    cells = [[" "] * width for _ in range(height)]
    for column, first, last in line.spans(width, height):
        for row in range(first, last + 1):
            cells[row][column] = "*"
    return ["".join(row) for row in cells]
