"""Rows → one JSON object per record, what is inside it nested in lists and columns.

``encode_nested`` is picklable through ``functools.partial``, so that worker processes can call it.
"""

from __future__ import annotations

import orjson

from grpo_cli.engine.rows.fields import RECORD_CONTEXT, RESPONSE_CONTEXT, Level, extras, names
from grpo_cli.engine.rows.rows import Row, rows
from grpo_cli.engine.rows.source import Source
from grpo_cli.terminal.numbers import escaped_json

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
        fields: the names that a row of that level has, in this order; None for all of them. A
            record that holds responses keeps its ``id``, and a response its number.
        lines: whether each has the end of a line.
        asked: which ``EXTRA`` fields the rows have.
    """
    result = rows(source, level, asked)
    if fields is not None:
        result = [_selected(row, level, fields, source.by) for row in result]
    option = _OPTIONS | orjson.OPT_APPEND_NEWLINE if lines else _OPTIONS
    return [_fitted(escaped_json(orjson.dumps(row, option=option))) for row in result]


def _fitted(piece: bytes) -> bytes:
    """Copies bytes to no more memory than they need; orjson leaves room for 8 KiB."""
    return memoryview(piece).tobytes() if len(piece) < _LARGE else piece


def _selected(row: Row, level: Level, fields: tuple[str, ...], by: tuple[str, ...]) -> Row:
    if level == "record":
        return {name: row[name] for name in fields}
    selected = _picked(row, "id", fields, (*by, *RECORD_CONTEXT))
    if level == "trajectory":
        own = level_names(level)
        selected["trajectories"] = [_chosen(one, fields, own) for one in row["trajectories"]]
        return selected
    inside = level_names(level) if level == "response" else RESPONSE_CONTEXT
    selected["responses"] = [
        _picked(response, "response", fields, inside) for response in row["responses"]
    ]
    known = level_names(level)
    for response, whole in zip(selected["responses"], row["responses"], strict=True):
        if level == "token":
            response["tokens"] = _chosen(whole["tokens"], fields, known)
        elif level == "turn":
            response["turns"] = [_chosen(turn, fields, known) for turn in whole["turns"]]
    return selected


def _chosen(row: Row, fields: tuple[str, ...], known: tuple[str, ...]) -> Row:
    return {name: row.get(name) for name in fields if name in known}


def level_names(level: Level) -> tuple[str, ...]:
    """The names of a level's own fields, also of those that are there where they are asked for."""
    return (*names(level), *extras(level))


def _picked(row: Row, key: str, fields: tuple[str, ...], allowed: tuple[str, ...]) -> Row:
    wanted = [name for name in fields if name in allowed]
    return {name: row[name] for name in (wanted if key in wanted else [key, *wanted])}
