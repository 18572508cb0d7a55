"""Rows → lines of text, one per record, response or token, in any format that has lines.

``encode_lines`` can be pickled, so that worker processes can call it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
import orjson

from grpo_cli.commands.emit import TextFormat
from grpo_cli.engine.rows.fields import SIDES, Level
from grpo_cli.engine.rows.rows import columns, row_segments
from grpo_cli.engine.rows.source import Source, bounds, one_number

Cells = str | Sequence[bytes]
"""A column of cells: one for all lines, or one for each."""


def encode_lines(
    source: Source,
    *,
    level: Level,
    fields: tuple[str, ...],
    lines: TextFormat,
) -> list[bytes]:
    """The lines of some records in order, in pieces.

    Args:
        source: the records.
        level: what one line is.
        fields: the names that a line has, in this order.
        lines: how they are written.
    """
    if not source.records:
        return []
    if level == "token":
        return list(_joined(_token_lines(source, fields, lines)))
    found = columns(source, level, fields)
    rows = zip(*(found[name].spread() for name in fields), strict=True)
    return [b"".join([lines.row(row, fields) for row in rows])]


_PIECE = 1 << 20
"""Bytes of lines that are one piece: large ones travel between processes without a copy."""


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _token_lines(source: Source, fields: tuple[str, ...], lines: TextFormat) -> Iterator[bytes]:
    """Makes the lines of many tokens at once, column by column."""
    found = columns(source, "token", fields)
    shared = {
        name: (list(map(lines.cell, column.values)), bounds(column.owners))
        for name, column in found.items()
        if column.owners is not None
    }
    for begin, end in _stretches(bounds(row_segments(source))):
        cells = [
            _repeated(*shared[name], begin, end)
            if name in shared
            else _cells(found[name].values, begin, end, lines)
            for name in fields
        ]
        yield _join(cells, end - begin, fields, lines)


_TOKENS = 1 << 11
"""Tokens whose cells are text at once: ten and more objects each, which a cache has to hold."""
_LONG = 64
"""Tokens of a response from which on its lines are made by themselves: they have more in common."""


def _stretches(starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The tokens of each long response, and those between them, at most so many at once.

    Args:
        starts: where each response's tokens begin, and where those of the last one end.
    """
    long = [pair for pair in pairwise(starts) if pair[1] - pair[0] >= _LONG]
    for first, last in pairwise(sorted({starts[0], starts[-1], *chain.from_iterable(long)})):
        for begin in range(first, last, _TOKENS):
            yield begin, min(begin + _TOKENS, last)


def _repeated(cells: Sequence[str], starts: Sequence[int], begin: int, end: int) -> Cells:
    """The cells of some tokens, which those of a record or response have in common.

    Args:
        cells: the cell of each record or response.
        starts: where the tokens of each begin, and where those of the last one end.
        begin, end: the tokens.
    """
    first, last = bisect_right(starts, begin) - 1, bisect_left(starts, end)
    cuts = [begin, *starts[first + 1 : last], end]
    found = [(cells[first + at], b - a) for at, (a, b) in enumerate(pairwise(cuts)) if b > a]
    if len({text for text, _ in found}) == 1:
        return found[0][0]
    return [cell for text, count in found for cell in repeat(text.encode(), count)]


def _cells(column: Any, begin: int, end: int, lines: TextFormat) -> Cells:
    """A part of a column of tokens: one cell for all, or one for each."""
    if column is None:
        return lines.cell(None)
    values = column[begin:end]
    if not isinstance(values, np.ndarray):
        texts = {value: lines.cell(value).encode() for value in set(values)}
        return lines.cell(values[0]) if len(texts) == 1 else [texts[value] for value in values]
    if values.dtype == np.int8:
        if (values == values[0]).all():
            return lines.cell(SIDES[values[0]])
        sides = [lines.cell(side).encode() for side in SIDES]
        return [sides[code] for code in values.tolist()]
    if one_number(values):
        return lines.cell(values[0].item())
    if lines.as_json and not (lines.infinite and not np.isfinite(values).all()):
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
    return [lines.cell(value).encode() for value in values.tolist()]


_CELL = "\0"
"""Stands for a cell in a line; no text of a cell has it."""


def _join(cells: Sequence[Cells], count: int, fields: Sequence[str], lines: TextFormat) -> bytes:
    """Joins columns to so many lines with their ends."""
    line = lines.line([text if isinstance(text, str) else _CELL for text in cells], fields) + "\n"
    if _CELL not in line:
        return line.encode() * count
    first, *between, last = line.encode().split(_CELL.encode())
    rows = _rows([column for column in cells if not isinstance(column, str)], between)
    return first + (last + first).join(rows) + last


def _rows(columns: Sequence[Sequence[bytes]], between: Sequence[bytes]) -> Iterator[bytes]:
    """Yields each line without the first and the last text, which all lines have.

    ``join`` writes a comma faster than it takes one.
    """
    comma = b"," if all(text[:1] == text[-1:] == b"," for text in between) else b""
    parts: list[Iterable[bytes]] = []
    for text, column in zip([comma, *between], columns, strict=True):
        inner = repeat(text[len(comma) : len(text) - len(comma)])
        parts += [column] if text == comma else [inner, column]
    return map(comma.join, zip(*parts, strict=False))
