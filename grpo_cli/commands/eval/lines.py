"""Rows → lines of text, one per record, response or token, in any format that has lines.

``encode_lines`` can be pickled, so that worker processes can call it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from grpo_cli.commands.emit import TextFormat
from grpo_cli.commands.eval.numbers import END, Column, Sides, neighbours
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
Cells = str | Column
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
    columns, shared = _token_columns(source, fields), _shared(source, fields, lines)
    ends = bounds(source.summary.record_tokens)
    pieces: list[list[bytes]] = [[] for _ in source.records]
    for span in spans(bounds(source.summary.responses)):
        cells = [
            _repeated(shared[name], span)
            if name in shared
            else _cells(columns.get(name), span.begin, span.end, lines)
            for name in fields
        ]
        sizes = span.sizes(ends)
        made = _together(cells, [size for _, size in sizes], fields, lines)
        for (record, _), text in zip(sizes, made, strict=True):
            pieces[record].append(text)
    yield from map(b"".join, pieces)


def _token_columns(source: Source, fields: tuple[str, ...]) -> Columns:
    columns = _read([field for field in TOKEN if field.name != "clip"], fields, source)
    return columns | {"clip": source.breakdown.clip}


def _shared(source: Source, fields: tuple[str, ...], lines: TextFormat) -> dict[str, list[str]]:
    """[R] the cells of what a record, or a response, says of all its tokens."""
    counts = source.summary.records.lengths.tolist()
    about = _read(_of(record_fields(source), (*source.by, *RECORD_CONTEXT)), fields, source)
    of_records = {name: list(map(lines.cell, values)) for name, values in about.items()}
    own = _read(_of(RESPONSE, RESPONSE_CONTEXT), fields, source)
    return {name: _each(cells, counts) for name, cells in of_records.items()} | {
        name: list(map(lines.cell, values)) for name, values in own.items()
    }


def _of(table: Sequence[Field], names: Sequence[str]) -> list[Field]:
    return [field for field in table if field.name in names]


def _each(cells: Iterable[T], counts: Iterable[int]) -> list[T]:
    """Each as often as it counts."""
    return [cell for cell, count in zip(cells, counts, strict=True) for _ in range(count)]


def _repeated(cells: list[str], span: Span) -> Cells:
    """The cells of a span's responses, for each of their tokens."""
    few = cells[span.first : span.first + len(span.lengths)]
    if len(set(few)) == 1:
        return few[0]
    return _each([cell.encode() for cell in few], span.lengths)


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
        return Sides(values, [lines.cell(side).encode() for side in SIDES])
    if one_number(values):
        return lines.cell(values[0].item())
    if lines.as_json and not (lines.infinite and not np.isfinite(values).all()):
        return values
    return [lines.cell(value).encode() for value in values.tolist()]


_CELL = "\0"
"""Stands for a cell in a line; no text of a cell has it."""


def _together(
    cells: Sequence[Cells], sizes: Sequence[int], fields: Sequence[str], lines: TextFormat
) -> Iterator[bytes]:
    """So many lines each time, with their ends, of columns."""
    line = lines.line([text if isinstance(text, str) else _CELL for text in cells], fields) + "\n"
    if _CELL not in line:
        yield from (line.encode() * size for size in sizes)
        return
    first, *between, last = line.encode().split(_CELL.encode())
    columns, between = neighbours([one for one in cells if not isinstance(one, str)], between)
    if len(sizes) == len(columns) == 1 and isinstance(columns[0], bytes):
        yield first + columns[0].replace(END, last + first) + last
    else:
        rows = _rows(columns, between)
        for size in sizes:
            yield first + (last + first).join(islice(rows, size)) + last


def _rows(columns: Sequence[Sequence[bytes] | bytes], between: Sequence[bytes]) -> Iterator[bytes]:
    """What stands between the first and the last text of each line.

    ``join`` writes a comma faster than it takes one.
    """
    comma = b"," if all(text[:1] == text[-1:] == b"," for text in between) else b""
    parts: list[Iterable[bytes]] = []
    for text, column in zip([comma, *between], columns, strict=True):
        inner = repeat(text[len(comma) : len(text) - len(comma)])
        each = column.split(END) if isinstance(column, bytes) else column
        parts += [each] if text == comma else [inner, each]
    return map(comma.join, zip(*parts, strict=False))


# ---- tokens whose lines are made together ------------------------------------------------------

_TOKENS = 1 << 14
"""Tokens whose cells are held as text at once: ten and more objects each."""
_LONG = 64
"""Tokens of a response from which on a look at what they have in common is worth it."""
_SHORT = _TOKENS // _LONG
"""Shorter responses whose tokens are held as text at once."""


class Span(NamedTuple):
    """Tokens that become text together: a part of a long response, or several short ones.

    Attributes:
        first: the first response.
        lengths: how many tokens of it and of those after it.
        begin: the first token.
    """

    first: int
    lengths: list[int]
    begin: int

    @property
    def end(self) -> int:
        """Behind the last token."""
        return self.begin + sum(self.lengths)

    def sizes(self, ends: Sequence[int]) -> list[tuple[int, int]]:
        """The records that its tokens are of, and how many are of each.

        Args:
            ends: where each record's tokens begin, and where those of the last one end.
        """
        first, last = bisect_right(ends, self.begin) - 1, bisect_left(ends, self.end)
        cuts = [self.begin, *ends[first + 1 : last], self.end]
        return [(first + at, b - a) for at, (a, b) in enumerate(pairwise(cuts)) if b > a]


def spans(starts: Sequence[int]) -> Iterator[Span]:
    """Those of each long response, and of many short ones in a row; none is without tokens.

    Args:
        starts: where each response's tokens begin, and where those of the last one end.
    """
    lengths = [end - begin for begin, end in pairwise(starts)]
    for long, row in groupby(range(len(lengths)), lambda response: lengths[response] >= _LONG):
        responses = list(row)
        if long:
            for response in responses:
                yield from _parts(response, starts[response], starts[response + 1])
            continue
        for at in range(0, len(responses), _SHORT):
            together = responses[at : at + _SHORT]
            begin, end = starts[together[0]], starts[together[-1] + 1]
            if end > begin:
                yield Span(together[0], [lengths[response] for response in together], begin)


def _parts(response: int, begin: int, end: int) -> Iterator[Span]:
    return (Span(response, [min(_TOKENS, end - cut)], cut) for cut in range(begin, end, _TOKENS))
