"""Rows → the lines of a csv file, per record.

``encode_csv`` is picklable through ``functools.partial``, so that worker processes can call it.
Numbers are written as in JSON, by the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from grpo_cli.engine.rows.fields import COLUMNS, RECORD_CONTEXT, RESPONSE_CONTEXT, Level
from grpo_cli.engine.rows.rows import Row, rows

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record


def encode_csv(
    records: Sequence[Record],
    breakdown: Breakdown,
    *,
    level: Level,
    fields: tuple[str, ...] | None,
) -> list[bytes]:
    """The csv lines of each record: one per record, response or token, each with its newline."""
    names = fields or COLUMNS[level]
    lines = {"record": _record_lines, "response": _response_lines, "token": _token_lines}[level]
    return [lines(row, names) for row in rows(records, breakdown, level)]


def csv_header(level: Level, fields: tuple[str, ...] | None) -> bytes:
    """The first line of a csv file."""
    return ",".join(fields or COLUMNS[level]).encode() + b"\n"


def first_lines(piece: bytes, most: int) -> tuple[bytes, int]:
    """The first rows of a piece and how many they are; a quoted cell may hold line ends."""
    rows, start, quoted = 0, 0, False
    for line in piece.splitlines(keepends=True):
        quoted ^= line.count(b'"') % 2 == 1
        start += len(line)
        rows += not quoted
        if rows == most:
            break
    return piece[:start], rows


def csv_line(row: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """One line of a csv file."""
    return ",".join(cell(row[name]) for name in names).encode() + b"\n"


def _record_lines(row: Row, names: tuple[str, ...]) -> bytes:
    return csv_line(row, names)


def _response_lines(row: Row, names: tuple[str, ...]) -> bytes:
    context = {name: row[name] for name in RECORD_CONTEXT}
    return b"".join(csv_line(context | response, names) for response in row["responses"])


def _token_lines(row: Row, names: tuple[str, ...]) -> bytes:
    context = {name: row[name] for name in RECORD_CONTEXT}
    pieces = []
    for response in row["responses"]:
        tokens = response["tokens"]
        about = context | {name: response[name] for name in RESPONSE_CONTEXT}
        count = len(tokens["position"])
        if count:
            columns = [_column(name, tokens, about, count) for name in names]
            pieces.append("\n".join(map(",".join, zip(*columns, strict=True))) + "\n")
    return "".join(pieces).encode()


def _column(name: str, tokens: Row, about: Row, count: int) -> Iterable[str]:
    if name in about:
        return repeat(cell(about[name]), count)
    values = tokens.get(name)
    if values is None:
        return repeat("", count)
    if isinstance(values, np.ndarray) and np.isfinite(values).all():
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
    return map(cell, values.tolist() if isinstance(values, np.ndarray) else values)


def cell(value: Any) -> str:
    """A value as csv has it: nothing for null, and ``inf``, which JSON cannot say."""
    if value is None:
        return ""
    if value in (np.inf, -np.inf):
        return repr(value)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if any(mark in text for mark in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
