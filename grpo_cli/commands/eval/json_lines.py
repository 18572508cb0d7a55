"""Rows → one JSON object per record.

``encode_json`` is picklable through ``functools.partial``, so that worker processes can call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from grpo_cli.engine.rows.fields import (
    RECORD_CONTEXT,
    RESPONSE_CONTEXT,
    RESPONSE_FIELDS,
    TOKEN_FIELDS,
    Level,
)
from grpo_cli.engine.rows.rows import Row, rows

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
    return [_fitted(orjson.dumps(row, option=_OPTIONS)) for row in result]


def _fitted(piece: bytes) -> bytes:
    """The same bytes in no more memory than they need; orjson leaves room for 8 KiB."""
    return memoryview(piece).tobytes()


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
