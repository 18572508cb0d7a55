"""Rows → lines of text, one per record, response or token, in any format that has lines.

``encode_lines`` can be pickled, so that worker processes can call it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson

from grpo_cli.commands.emit import TextFormat
from grpo_cli.engine.rows.fields import (
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    SIDES,
    TOKEN,
    Field,
    Level,
)
from grpo_cli.engine.rows.rows import record_fields
from grpo_cli.engine.rows.source import Source, bounds, one_number

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record

T = TypeVar("T")
Columns = dict[str, Any]
Cells = str | Sequence[bytes]
"""A column of cells: one for all lines, or one for each."""


def encode_lines(
    records: Sequence[Record],
    breakdown: Breakdown,
    *,
    level: Level,
    fields: tuple[str, ...],
    lines: TextFormat,
) -> list[bytes]:
    """The lines of each record, each line with its end.

    Args:
        records: those that ``breakdown`` is of.
        breakdown: the numbers.
        level: what one line is.
        fields: the names that a line has, in this order.
        lines: how they are written.
    """
    if not records:
        return []
    source = Source(records, breakdown)
    return list(_PIECES[level](source, fields, lines))


def _records(source: Source, fields: tuple[str, ...], lines: TextFormat) -> Iterator[bytes]:
    columns = _read(record_fields(source), fields, source)
    for row in zip(*(columns[name] for name in fields), strict=True):
        yield lines.row(row, fields)


def _responses(source: Source, fields: tuple[str, ...], lines: TextFormat) -> Iterator[bytes]:
    columns = _read(RESPONSE, fields, source)
    about = [field for field in record_fields(source) if field.name not in columns]
    shared = _read(about, fields, source)
    for at, (begin, end) in enumerate(pairwise(bounds(source.summary.records))):
        own: list[Iterable[Any]] = [
            columns[name][begin:end] if name in columns else repeat(shared[name][at], end - begin)
            for name in fields
        ]
        yield b"".join(lines.row(row, fields) for row in zip(*own, strict=True))


def _tokens(source: Source, fields: tuple[str, ...], lines: TextFormat) -> Iterator[bytes]:
    """Makes the lines of many tokens at once, column by column."""
    columns, shared = _token_columns(source, fields), _shared(source, fields, lines)
    responses, records = bounds(source.summary.responses), bounds(source.summary.record_tokens)
    pieces: list[list[bytes]] = [[] for _ in source.records]
    for begin, end in _stretches(responses):
        counts = _overlaps(responses, begin, end)
        cells = [
            _repeated(shared[name], counts)
            if name in shared
            else _cells(columns.get(name), begin, end, lines)
            for name in fields
        ]
        counts = _overlaps(records, begin, end)
        made = _join(cells, [count for _, count in counts], fields, lines)
        for (record, _), text in zip(counts, made, strict=True):
            pieces[record].append(text)
    yield from map(b"".join, pieces)


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


def _overlaps(starts: Sequence[int], begin: int, end: int) -> list[tuple[int, int]]:
    """The segments that some tokens belong to, and how many tokens belong to each.

    Args:
        starts: where each segment begins, and where the last one ends.
        begin, end: the tokens.
    """
    first, last = bisect_right(starts, begin) - 1, bisect_left(starts, end)
    cuts = [begin, *starts[first + 1 : last], end]
    return [(first + at, b - a) for at, (a, b) in enumerate(pairwise(cuts)) if b > a]


def _token_columns(source: Source, fields: tuple[str, ...]) -> Columns:
    columns = _read([field for field in TOKEN if field.name != "clip"], fields, source)
    return columns | {"clip": source.breakdown.clip}


def _shared(source: Source, fields: tuple[str, ...], lines: TextFormat) -> dict[str, list[str]]:
    """[R] the cells of what a record, or a response, says of all its tokens."""
    counts = source.summary.records.lengths.tolist()
    about = _read(_of(record_fields(source), (*source.by, *RECORD_CONTEXT)), fields, source)
    of_records = {name: list(map(lines.cell, values)) for name, values in about.items()}
    own = _read(_of(RESPONSE, RESPONSE_CONTEXT), fields, source)
    return {
        name: [cell for cell, count in zip(cells, counts, strict=True) for _ in range(count)]
        for name, cells in of_records.items()
    } | {name: list(map(lines.cell, values)) for name, values in own.items()}


def _of(table: Sequence[Field], names: Sequence[str]) -> list[Field]:
    return [field for field in table if field.name in names]


def _repeated(cells: list[str], counts: Sequence[tuple[int, int]]) -> Cells:
    """The cells of some responses, each as often as it counts; one if they are all alike."""
    if len({cells[response] for response, _ in counts}) == 1:
        return cells[counts[0][0]]
    return [text for at, count in counts for text in repeat(cells[at].encode(), count)]


_PIECES = {"record": _records, "response": _responses, "token": _tokens}


def _read(table: Sequence[Field], wanted: Sequence[str], source: Source) -> Columns:
    return {field.name: field.read(source) for field in table if field.name in wanted}


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


def _join(
    cells: Sequence[Cells], sizes: Sequence[int], fields: Sequence[str], lines: TextFormat
) -> Iterator[bytes]:
    """Joins columns to lines with their ends, so many each time."""
    line = lines.line([text if isinstance(text, str) else _CELL for text in cells], fields) + "\n"
    if _CELL not in line:
        yield from (line.encode() * size for size in sizes)
        return
    first, *between, last = line.encode().split(_CELL.encode())
    rows = _rows([column for column in cells if not isinstance(column, str)], between)
    for size in sizes:
        yield first + (last + first).join(islice(rows, size)) + last


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
