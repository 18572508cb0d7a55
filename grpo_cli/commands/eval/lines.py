"""Rows → lines of text, one per record, response or token, in any format that has lines.

``encode_lines`` can be pickled, so that worker processes can call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson

from grpo_cli.batch import I64
from grpo_cli.commands.emit import TextFormat
from grpo_cli.engine.rows.fields import SIDES, Level
from grpo_cli.engine.rows.rows import columns, row_segments, rows
from grpo_cli.engine.rows.source import Source, one_number
from grpo_cli.terminal.numbers import escaped_json

Cells = str | Sequence[bytes]
"""A column of cells: one for all lines, or one for each."""


def encode_lines(
    source: Source, *, level: Level, fields: tuple[str, ...], lines: TextFormat
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
        return list(_token_lines(source, fields, lines))
    found = columns(source, level, fields)
    rows = zip(*(found[name].spread() for name in fields), strict=True)
    return [b"".join([lines.row(row, fields) for row in rows])]


_TOKENS = 1 << 11
"""Tokens whose cells are text at once: ten and more objects each, which a cache has to hold."""


def _token_lines(source: Source, fields: tuple[str, ...], lines: TextFormat) -> Iterator[bytes]:
    """Makes the lines of many tokens at once, column by column."""
    found = columns(source, "token", fields)
    shared = {
        name: (list(map(lines.cell, column.values)), column.owners.index)
        for name, column in found.items()
        if column.owners is not None
    }
    total = row_segments(source).total
    for begin in range(0, total, _TOKENS):
        end = min(begin + _TOKENS, total)
        cells = [
            _shared(*shared[name], begin, end)
            if name in shared
            else _cells(found[name].values, begin, end, lines)
            for name in fields
        ]
        yield _join(cells, end - begin, fields, lines)


def _shared(cells: Sequence[str], owners: I64, begin: int, end: int) -> Cells:
    """The cells of some tokens: those of the token's record or response."""
    own = owners[begin:end].tolist()
    texts = {at: cells[at].encode() for at in range(own[0], own[-1] + 1)}
    return [texts[at] for at in own] if len({*texts.values()}) > 1 else cells[own[0]]


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
"""Replaces a cell in a line; no text of a cell has it."""


def _join(cells: Sequence[Cells], count: int, fields: Sequence[str], lines: TextFormat) -> bytes:
    """Joins columns to so many lines with their ends."""
    line = lines.line([text if isinstance(text, str) else _CELL for text in cells], fields) + "\n"
    between = line.encode().split(_CELL.encode())
    columns = [column for column in cells if not isinstance(column, str)]
    parts = chain.from_iterable(zip(map(repeat, between), columns, strict=False))
    return b"".join(chain.from_iterable(zip(*parts, repeat(between[-1], count), strict=False)))


# ---- one JSON object per record, what is inside it nested in lists and columns -------------------


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_LARGE = 1 << 17  # bytes of which 8 KiB are a small part


def encode_nested(
    source: Source,
    *,
    level: Level,
    fields: tuple[str, ...] | None,
    lines: bool = False,
    asked: tuple[str, ...] = (),
) -> list[bytes]:
    """One JSON object per record.

    Args:
        source: the records.
        level: the deepest rows inside.
        fields: as ``rows`` takes the chosen ones.
        lines: whether each has the end of a line.
        asked: which ``EXTRA`` fields the rows have.
    """
    result = rows(source, level, asked, fields)
    option = _OPTIONS | orjson.OPT_APPEND_NEWLINE if lines else _OPTIONS
    pieces = (escaped_json(orjson.dumps(row, option=option)) for row in result)
    # Copied to no more memory than they need: orjson leaves room for 8 KiB.
    return [memoryview(one).tobytes() if len(one) < _LARGE else one for one in pieces]
