"""Rows → bytes: one JSON object, or the lines of a csv file, per record.

The functions are picklable through ``functools.partial``, so that worker processes can call them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from grpo_cli.report.fields import (
    COLUMNS,
    RECORD_CONTEXT,
    RESPONSE_CONTEXT,
    RESPONSE_FIELDS,
    TOKEN_FIELDS,
    Level,
)
from grpo_cli.report.rows import Row, rows

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def encode_json(
    records: Sequence[Record],
    breakdown: Breakdown,
    *,
    level: Level,
    fields: tuple[str, ...] | None,
) -> list[bytes]:
    """One JSON object per record, without a newline.

    Args:
        records: those that ``breakdown`` is of.
        breakdown: the numbers.
        level: what one row is.
        fields: the names that a row of that level has, in this order; None for all of them. A
            record that holds responses keeps its ``id``, and a response its ``index``.
    """
    result = rows(records, breakdown, level)
    if fields is not None:
        result = [_selected(row, level, fields) for row in result]
    return [orjson.dumps(row, option=_OPTIONS) for row in result]


def _selected(row: Row, level: Level, fields: tuple[str, ...]) -> Row:
    if level == "record":
        return {name: row[name] for name in fields}
    kept = _picked(row, "id", fields, RECORD_CONTEXT)
    inside = RESPONSE_FIELDS if level == "response" else RESPONSE_CONTEXT
    kept["responses"] = [_picked(one, "index", fields, inside) for one in row["responses"]]
    if level == "token":
        for response, whole in zip(kept["responses"], row["responses"], strict=True):
            tokens = whole["tokens"]
            response["tokens"] = {n: tokens.get(n) for n in fields if n in TOKEN_FIELDS}
    return kept


def _picked(row: Row, key: str, fields: tuple[str, ...], allowed: tuple[str, ...]) -> Row:
    names = [name for name in fields if name in allowed]
    return {name: row[name] for name in (names if key in names else [key, *names])}


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


def csv_line(row: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """One line of a csv file."""
    return _line(cell(row[name]) for name in names)


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
        columns = [_column(name, tokens, about, count) for name in names]
        text = "\n".join(map(",".join, zip(*columns, strict=True)))
        pieces.append(f"{text}\n" if count else "")
    return "".join(pieces).encode("utf-8", "backslashreplace")


def _column(name: str, tokens: Row, about: Row, count: int) -> Iterator[str]:
    if name in about:
        return repeat(cell(about[name]), count)
    values = tokens.get(name)
    if isinstance(values, np.ndarray):
        return map(repr, values.tolist())
    return repeat("", count) if values is None else map(cell, values)


def _line(cells: Iterator[str]) -> bytes:
    return ",".join(chain(cells)).encode("utf-8", "backslashreplace") + b"\n"


def cell(value: Any) -> str:
    """A value as csv has it: shortest round-trip numbers, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, float | int):
        return repr(value)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if any(mark in text for mark in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
