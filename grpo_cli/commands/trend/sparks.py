"""Series as small pictures of characters: a line of blocks, or a chart of a few lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.terminal.numbers import shown

BLOCKS = "▁▂▃▄▅▆▇█"
_MISSING = " "
_HIGH = 4  # lines of a chart
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800


def spark(values: Sequence[float | None], width: int) -> str:
    """A line of blocks: the medians of ``width`` pieces of the series, from its least to most."""
    pieces = _pieces(values, width)
    known = pieces[~np.isnan(pieces)]
    if not known.size:
        return ""
    low, high = float(known.min()), float(known.max())
    span = (high - low) or 1.0
    return "".join(
        _MISSING if np.isnan(one) else BLOCKS[min(int((one - low) / span * 8), 7)]
        for one in pieces.tolist()
    )


def chart(
    title: str, values: Sequence[float | None], width: int, mark: int | None = None
) -> list[str]:
    """A title with the range, a few lines of dots, and below them where something began.

    Args:
        title: what it shows.
        values: one a step.
        width: characters.
        mark: the index of the step to mark.
    """
    columns = _stretched(_pieces(values, 2 * width), 2 * width)
    known = columns[~np.isnan(columns)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    rows = 4 * _HIGH
    cells = np.zeros((_HIGH, width), dtype=np.int64)
    for at, value in enumerate(columns.tolist()):
        if not np.isnan(value):
            down = rows - 1 - round((value - low) / ((high - low) or 1.0) * (rows - 1))
            cells[down // 4, at // 2] |= _DOTS[down % 4][at % 2]
    lines = ["".join(chr(_BRAILLE + cell) for cell in row) for row in cells.tolist()]
    place = "" if mark is None else " " * min(mark * width // max(len(values), 1), width - 1) + "▲"
    head = f"{title} {shown(low)} … {shown(high)}"
    return [head[:width].ljust(width), *lines, place.ljust(width)]


def _stretched(numbers: F64, count: int) -> F64:
    """A short series drawn over the whole width."""
    places = (np.arange(count) + 0.5) * len(numbers) / count
    return numbers[places.astype(np.int64)]


def _pieces(values: Sequence[float | None], count: int) -> F64:
    """The medians of at most ``count`` pieces of a series; NaN where nothing is known."""
    numbers = np.array([np.nan if one is None else one for one in values])
    if len(numbers) <= count:
        return numbers
    found = []
    for part in np.array_split(numbers, count):
        known = part[~np.isnan(part)]
        found.append(float(np.median(known)) if known.size else np.nan)
    return np.array(found)
