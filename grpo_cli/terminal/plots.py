"""Plots made of characters: a spark line, a chart with axes, many of them side by side.

They need no colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.cells import set_cell_size

from grpo_cli.terminal.numbers import brief, visible

F64 = NDArray[np.float64]
Values = Sequence[float | None] | F64

_BLOCKS = "▁▂▃▄▅▆▇█"
_NARROWEST = 32
"""The columns that a chart needs; several stand side by side where there is room for it."""


class Series(NamedTuple):
    """Numbers in a row.

    Attributes:
        name: the title of the chart.
        values: None or NaN where there is none.
        marks: the indexes that are marked on the axis, as where something began.
    """

    name: str
    values: Values
    marks: Sequence[int] = ()


def spark(values: Values, width: int) -> str:
    """A line of at most ``width`` characters, from the least value to the greatest.

    Where there are more values than characters, each shows the one of its values that is
    furthest from the median of all, so that a spike is never lost. A space: no value.
    """
    numbers = _numbers(values)
    low, high = _range(numbers)
    finite = np.sort(_finite(numbers))
    middle = sum(finite[[(len(finite) - 1) // 2, len(finite) // 2]] / 2) if len(finite) else 0.0
    return "".join(
        _block(_furthest(part, middle), low, high)
        for part in np.array_split(numbers, max(min(width, len(numbers)), 1))
    )


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return " "
    share = (value - low) / (high - low) if high > low else 0.0
    return _BLOCKS[min(int(share * len(_BLOCKS)), len(_BLOCKS) - 1)]


def _furthest(part: F64, middle: float) -> float:
    finite = _finite(part)
    return float(finite[np.argmax(np.abs(finite - middle))]) if finite.size else math.nan


def small_multiples(
    series: Sequence[Series], x: Sequence[object], width: int, *, height: int = 5
) -> list[str]:
    """Charts over one axis, as many side by side as the width has room for.

    Args:
        series: one chart each, of as many values as ``x`` has.
        x: what the values stand at; the first, the middle and the last are written.
        width: the columns there are.
        height: the lines of each chart, without its name and its axis.
    """
    across = max(1, min(len(series), width // (_NARROWEST + 2)))
    each = (width - 2 * (across - 1)) // across
    ends = [end for one in series for end in _range(_numbers(one.values)) if math.isfinite(end)]
    margin = max((len(brief(end)) for end in ends), default=0)
    charts = [chart(one, x, each, height=height, margin=margin) for one in series]
    lines: list[str] = []
    for begin in range(0, len(charts), across):
        group = charts[begin : begin + across]
        lines += ["  ".join(parts).rstrip() for parts in zip(*group, strict=True)] + [""]
    return lines[:-1]


def chart(
    series: Series, x: Sequence[object], width: int, *, height: int = 5, margin: int = 0
) -> list[str]:
    """One chart: its name and last value, the line, the axis with its marks, the axis' labels."""
    numbers = _numbers(series.values)
    low, high = _range(numbers)
    top, bottom = (brief(high), brief(low)) if math.isfinite(low) else ("", "")
    margin = max(len(top), len(bottom), margin)
    room = max(width - margin - 2, 4)
    rows = braille_rows(line_of(numbers, low, high), room, height)
    labels = {0: top, height - 1: bottom} if high > low else {height // 2: top}
    finite = _finite(numbers)
    last = brief(float(finite[-1])) if finite.size else "–"
    name = visible(series.name)
    lines = [set_cell_size(f"{set_cell_size(name, max(width - len(last) - 1, 1))} {last}", width)]
    for number, row in enumerate(rows):
        lines.append(f"{labels.get(number, '').rjust(margin)} │{row}")
    axis = ["─"] * room
    for index in series.marks:
        axis[column_of(index, len(numbers), room)] = "▲"
    lines.append(f"{'':{margin}} └{''.join(axis)}")
    return [*lines, " " * (margin + 2) + _ends(x, room)]


def _ends(x: Sequence[object], room: int) -> str:
    """The first, the middle and the last label, where they have room."""
    if not len(x):
        return " " * room
    first, last, middle = (visible(str(x[at])) for at in (0, -1, len(x) // 2))
    line = first.ljust(room)[:room]
    if len(x) > 1 and len(first) + len(last) < room:
        line = line[: room - len(last)] + last
    begin = column_of(len(x) // 2, len(x), room) - len(middle) // 2
    if len(first) + 1 < begin and begin + len(middle) + len(last) + 1 < room:
        line = line[:begin] + middle + line[begin + len(middle) :]
    return line


def _numbers(values: Values) -> F64:
    return np.array(values, dtype=np.float64)  # None as NaN


def _finite(numbers: F64) -> F64:
    return numbers[np.isfinite(numbers)]


def _range(numbers: F64) -> tuple[float, float]:
    finite = _finite(numbers)
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)


# ---- a line through points ---------------------------------------------------------------------

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Braille: what the dot of each row and column adds to U+2800."""


def column_of(index: int, count: int, room: int) -> int:
    """The column of an index among ``room`` columns."""
    return round(index * (room - 1) / (count - 1)) if count > 1 else 0


def _spans(shares: F64, columns: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Each column of a line that is drawn, and from which row to which, from above."""
    points = {
        at: (column_of(at, len(shares), columns), round((1.0 - share) * (rows - 1)))
        for at, share in enumerate(shares.tolist())
        if math.isfinite(share)
    }
    for column, row in points.values():
        yield column, row, row
    for at, start in points.items():
        if at + 1 in points:
            yield from _between(start, points[at + 1])


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    """The columns of a line from one point to the next, without gaps."""
    (left, first), (right, last) = start, end
    steps = max(right - left, 1)
    before = first
    for step in range(1, steps + 1):
        row = round(first + (last - first) * step / steps)
        yield left + min(step, right - left), min(before, row), max(before, row)
        before = row


def line_of(numbers: F64, low: float, high: float) -> F64:
    """A line of points from 0 (below) to 1; in the middle where both ends are one."""
    if not high > low:
        return np.where(np.isfinite(numbers), 0.5, np.nan)
    return (numbers - low) / (high - low)


def braille_rows(line: F64, width: int, height: int) -> list[str]:
    """The line in ``height`` rows of Braille letters, each two dots wide and four high."""
    cells = np.zeros((height, width), dtype=np.int64)
    for column, first, last in _spans(line, 2 * width, 4 * height):
        for row in range(first, last + 1):
            cells[row // 4, column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells.tolist()]
