"""Rows → lines of text, one per record, response or token, in any format that has lines.

A format says how a value is written and how the values of a line are put together. What encodes is
picklable, so that worker processes can call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.commands.eval.spans import Span, spans
from grpo_cli.engine.rows.fields import (
    RECORD,
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    Field,
    Level,
)
from grpo_cli.engine.rows.lists import bounds, one_number
from grpo_cli.engine.rows.rows import Source, token_columns

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record

Columns = dict[str, Any]
Texts = str | Sequence[str]
"""The cells of a column: one for all lines, or one for each."""


class Lines(NamedTuple):
    """A format whose rows are lines.

    Attributes:
        cell: a value as text.
        line: a line of cells, beside the names of its fields, without its end.
        infinite: whether it can say that a number is infinite.
        as_json: whether it writes numbers as JSON does.
        quoted: whether a cell may hold the ends of lines.
    """

    cell: Callable[[Any], str]
    line: Callable[[Sequence[str], Sequence[str]], str]
    infinite: bool
    as_json: bool = True
    quoted: bool = False


def encode_lines(
    records: Sequence[Record],
    breakdown: Breakdown,
    *,
    level: Level,
    fields: tuple[str, ...],
    lines: Lines,
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


def _records(source: Source, fields: tuple[str, ...], lines: Lines) -> Iterator[bytes]:
    columns = _read(RECORD, fields, source)
    for row in zip(*(columns[name] for name in fields), strict=True):
        yield _line(row, fields, lines)


def _responses(source: Source, fields: tuple[str, ...], lines: Lines) -> Iterator[bytes]:
    columns = _read(RESPONSE, fields, source)
    shared = _read([field for field in RECORD if field.name not in columns], fields, source)
    for at, (begin, end) in enumerate(pairwise(bounds(source.summary.records))):
        own: list[Iterable[Any]] = [
            columns[name][begin:end] if name in columns else repeat(shared[name][at], end - begin)
            for name in fields
        ]
        yield b"".join(_line(row, fields, lines) for row in zip(*own, strict=True))


def _tokens(source: Source, fields: tuple[str, ...], lines: Lines) -> Iterator[bytes]:
    columns, shared = token_columns(source), _shared(source, fields, lines)
    ends = bounds(source.summary.record_tokens)
    pieces: list[list[bytes]] = [[] for _ in source.records]
    for span in spans(bounds(source.summary.responses)):
        texts = [
            _repeated(shared[name], span)
            if name in shared
            else _texts(columns.get(name), span.begin, span.end, lines)
            for name in fields
        ]
        sizes = span.sizes(ends)
        made = _together(texts, [size for _, size in sizes], fields, lines)
        for (record, _), text in zip(sizes, made, strict=True):
            pieces[record].append(text.encode())
    yield from map(b"".join, pieces)


def _shared(source: Source, fields: tuple[str, ...], lines: Lines) -> dict[str, list[str]]:
    """[R] the cells of what a record, or a response, says of all its tokens."""
    counts = source.summary.records.lengths.tolist()
    about = _read(_of(RECORD, RECORD_CONTEXT), fields, source)
    of_records = {name: list(map(lines.cell, values)) for name, values in about.items()}
    own = _read(_of(RESPONSE, RESPONSE_CONTEXT), fields, source)
    return {name: _each(cells, counts) for name, cells in of_records.items()} | {
        name: list(map(lines.cell, values)) for name, values in own.items()
    }


def _of(table: Sequence[Field], names: Sequence[str]) -> list[Field]:
    return [field for field in table if field.name in names]


def _each(cells: Iterable[str], counts: Iterable[int]) -> list[str]:
    """Each as often as it counts."""
    return [cell for cell, count in zip(cells, counts, strict=True) for _ in range(count)]


def _repeated(cells: list[str], span: Span) -> Texts:
    """The cells of a span's responses, for each of their tokens."""
    few = cells[span.first : span.first + len(span.lengths)]
    return few[0] if len(set(few)) == 1 else _each(few, span.lengths)


_PIECES = {"record": _records, "response": _responses, "token": _tokens}


def _read(table: Sequence[Field], wanted: Sequence[str], source: Source) -> Columns:
    return {field.name: field.read(source) for field in table if field.name in wanted}


def _line(row: Sequence[Any], fields: Sequence[str], lines: Lines) -> bytes:
    return lines.line([lines.cell(value) for value in row], fields).encode() + b"\n"


def _texts(column: Any, begin: int, end: int, lines: Lines) -> Texts:
    """A part of a column of tokens as text; numbers by one call, as JSON writes them."""
    if column is None:
        return lines.cell(None)
    values = column[begin:end]
    if not isinstance(values, np.ndarray):
        texts = {value: lines.cell(value) for value in set(values)}
        return texts[values[0]] if len(texts) == 1 else [texts[value] for value in values]
    if one_number(values):
        return _numbers(values[:1], lines)[0]
    return _numbers(values, lines)


def _numbers(values: NDArray[Any], lines: Lines) -> Sequence[str]:
    if not lines.as_json or (lines.infinite and not np.isfinite(values).all()):
        return list(map(lines.cell, values.tolist()))
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")


_CELL = "\0"
"""Stands for a cell in a line; no text of a cell has it."""


def _together(
    texts: Sequence[Texts], sizes: Sequence[int], fields: Sequence[str], lines: Lines
) -> Iterator[str]:
    """So many lines each time, with their ends, of columns of text."""
    line = lines.line([text if isinstance(text, str) else _CELL for text in texts], fields) + "\n"
    columns = [text for text in texts if not isinstance(text, str)]
    if not columns:
        yield from (line * size for size in sizes)
        return
    first, *between, last = line.split(_CELL)
    rows = map(*_joining(columns, between))
    for size in sizes:
        yield first + (last + first).join(islice(rows, size)) + last


def _joining(columns: Sequence[Sequence[str]], between: Sequence[str]) -> Any:
    """What puts a line together of its parts, and these, line by line.

    ``join`` writes a comma faster than it takes one.
    """
    comma = "," if all(text[0] == text[-1] == "," for text in between) else ""
    parts: list[Iterable[str]] = [columns[0]]
    for text, column in zip(between, columns[1:], strict=True):
        inner = repeat(text[len(comma) : len(text) - len(comma)])
        parts += [column] if text == comma else [inner, column]
    return comma.join, zip(*parts, strict=False)
