"""Rows → lines of text, one per record, response or token, in any format that has lines.

A format says how a value is written and how the values of a line are put together. What encodes is
picklable, so that worker processes can call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from grpo_cli.engine.rows.fields import (
    RECORD,
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    Field,
    Level,
)
from grpo_cli.engine.rows.lists import bounds
from grpo_cli.engine.rows.rows import Source, lacking, token_columns

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record

Columns = dict[str, Any]

_TOKENS = 1 << 14
"""Tokens whose cells are held as text at once: ten and more objects each."""


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
    columns = token_columns(source)
    about = _read(RECORD, RECORD_CONTEXT, source), _read(RESPONSE, RESPONSE_CONTEXT, source)
    cuts = iter(enumerate(pairwise(bounds(source.summary.responses))))
    for number, record in enumerate(source.records):
        absent, text = lacking(record), BytesIO()
        for response, (first, last) in islice(cuts, len(record.widths)):
            shared = {name: lines.cell(values[number]) for name, values in about[0].items()}
            shared |= {name: lines.cell(values[response]) for name, values in about[1].items()}
            for begin in range(first, last, _TOKENS):
                end = min(begin + _TOKENS, last)
                texts: list[Iterable[str]] = []
                for name in fields:
                    if name in shared:
                        texts.append(repeat(shared[name], end - begin))
                    else:
                        values = None if name in absent else columns.get(name)
                        texts.append(_texts(values, begin, end, lines))
                written = [lines.line(cells, fields) for cells in zip(*texts, strict=True)]
                text.write(("\n".join(written) + "\n").encode())
        yield text.getvalue()


_PIECES = {"record": _records, "response": _responses, "token": _tokens}


def _read(table: Sequence[Field], wanted: Sequence[str], source: Source) -> Columns:
    return {field.name: field.read(source) for field in table if field.name in wanted}


def _line(row: Sequence[Any], fields: Sequence[str], lines: Lines) -> bytes:
    return lines.line([lines.cell(value) for value in row], fields).encode() + b"\n"


def _texts(values: Any, begin: int, end: int, lines: Lines) -> Iterable[str]:
    """A column of a response's tokens as text; numbers by one call, as JSON writes them."""
    if values is None:
        return repeat(lines.cell(None), end - begin)
    part = values[begin:end]
    if not isinstance(part, np.ndarray):
        return map(lines.cell, part)
    if not lines.as_json:
        return map(lines.cell, part.tolist())
    if lines.infinite and not np.isfinite(part).all():
        return map(lines.cell, part.tolist())
    return orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
