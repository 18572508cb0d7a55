"""Columns of numbers that stand side by side in a line → the text of all of them.

One call of ``orjson`` writes them row by row, a comma behind each number. Where something else
belongs there, the comma's byte becomes one that no text has, and all of that one become it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

Numbers = NDArray[Any]
"""[n] doubles, or whole numbers below 2⁵³."""


class Sides(NamedTuple):
    """A column, or what stands between two, that is one of a few texts.

    Attributes:
        codes: [n] which of the texts each line has.
        texts: those of code 0, 1 … −1.
    """

    codes: NDArray[np.int8]
    texts: list[bytes]

    def each(self) -> list[bytes]:
        """The text of each line."""
        return [self.texts[code] for code in self.codes.tolist()]


Column = Sequence[bytes] | Numbers | Sides
Gap = bytes | Sides

END = b"\xff"
"""Stands between the rows of numbers."""
_DROPPED = 0xFE
_MARKS = bytes([0xC0, 0xC1, *range(0xF5, 0xFE)])
"""Bytes that UTF-8 never has, so that no text has them."""


def neighbours(
    columns: Sequence[Column], between: Sequence[bytes]
) -> tuple[list[Sequence[bytes] | bytes], list[bytes]]:
    """The columns as text, numbers side by side as one, whose rows ``END`` parts.

    Args:
        columns: those of a line.
        between: what stands between each and the next.

    Returns:
        The fewer columns, and what stands between these.
    """
    made: list[Sequence[bytes] | bytes] = []
    apart: list[bytes] = []
    at = 0
    while at < len(columns):
        apart += between[at - 1 : at] if at else ()
        column = columns[at]
        if isinstance(column, np.ndarray):
            gaps, count = _gaps(columns[at:], between[at:])
            numbers = [one for one in columns[at : at + count] if isinstance(one, np.ndarray)]
            made.append(side_by_side(numbers, gaps))
            at += count
        else:
            made.append(column.each() if isinstance(column, Sides) else column)
            at += 1
    return made, apart


def _gaps(columns: Sequence[Column], between: Sequence[bytes]) -> tuple[list[Gap], int]:
    """What stands between the numbers that begin a line, and how many columns these take."""
    gaps: list[Gap] = []
    at, marks = 1, 0
    while at < len(columns):
        column, taken, gap = columns[at], 1, between[at - 1]
        found: Gap = gap
        if isinstance(column, Sides) and at + 1 < len(columns):
            found = Sides(column.codes, [gap + text + between[at] for text in column.texts])
            column, taken = columns[at + 1], 2
        marks += len(found.texts) if isinstance(found, Sides) else 1
        if not isinstance(column, np.ndarray) or marks > len(_MARKS):
            break
        gaps.append(found)
        at += taken
    return gaps, at


def side_by_side(numbers: Sequence[Numbers], gaps: Sequence[Gap]) -> bytes:
    """Rows of numbers with what stands between them, and ``END`` between the rows."""
    flat = np.stack(numbers, axis=1).astype(np.float64, copy=False).reshape(-1)
    text = bytearray(orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY))
    text[-1:] = b","
    view = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(view == ord(",")).reshape(-1, len(numbers))
    for column, ends in zip(numbers, commas.T, strict=True):
        if column.dtype.kind == "i":  # what follows the point of 12.0
            view[ends - 1] = view[ends - 2] = _DROPPED
    replaced = _mark(view, commas, gaps)
    view[commas[:, -1]] = END[0]
    view[0] = view[-1] = _DROPPED
    for mark, gap in [(_DROPPED, b""), *replaced]:
        text = text.replace(bytes([mark]), gap)
    return bytes(text)


def _mark(
    view: NDArray[np.uint8], commas: NDArray[np.intp], gaps: Iterable[Gap]
) -> list[tuple[int, bytes]]:
    """Writes a mark in the place of each comma that is not one; what each mark stands for."""
    marks, replaced = iter(_MARKS), []
    for gap, ends in zip(gaps, commas.T, strict=False):
        if isinstance(gap, Sides):
            own = [next(marks) for _ in gap.texts]
            view[ends] = np.array(own, np.uint8)[gap.codes]
            replaced += list(zip(own, gap.texts, strict=True))
        elif gap != b",":
            view[ends] = mark = next(marks)
            replaced.append((mark, gap))
    return replaced
