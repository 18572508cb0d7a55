"""Canonical records → a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS
from grpo_cli.records.tables.canonical import dumps
from grpo_cli.records.tables.cells import JSON
from grpo_cli.records.tables.files import package

_GROUP_BYTES = 64 << 20
_FLOATS, _BITS, _IDS, _WORDS = "float64", "int8", "int64", "string"
_TYPES = {
    **dict.fromkeys(TOKEN_COLUMNS, _FLOATS),
    "mask": _BITS,
    "token_ids": _IDS,
    "tokens": _WORDS,
}
_PLAIN: dict[str, set[type]] = {
    _FLOATS: {float, int},
    _BITS: {int, bool},
    _IDS: {int},
    _WORDS: {str},
}
_LARGEST = {_BITS: 1, _IDS: 2**63 - 1, _FLOATS: 2**53}


def write(records: Iterator[dict[str, Any]], stream: BinaryIO) -> None:
    """Writes records, in row groups of some megabytes.

    A field has a column of its own where each of its values is lists of lists of tokens' numbers,
    or a list with a number for each response; what else there is goes to ``grpo_json``.

    Raises:
        InputError: where there are no records, or the package is missing.
    """
    pa = package()
    first = next(records, None)
    if first is None:
        raise InputError("no records to write")
    schema = _schema(pa, first)
    with pa.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        held = 0
        for one in chain((first,), records):
            row, size = _row(one, schema)
            rows.append(row)
            held += size
            if held >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                rows, held = [], 0
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _schema(pa: Any, first: dict[str, Any]) -> Any:
    made = {
        "float64": pa.float64(),
        "int8": pa.int8(),
        "int64": pa.int64(),
        "string": pa.string(),
    }
    fields = []
    for name, value in first.items():
        kind = _TYPES.get(name, _FLOATS if name in ("rewards", "advantages") else "")
        if kind and _nested(value, kind):
            fields.append(pa.field(name, pa.list_(pa.list_(made[kind]))))
        elif name in ("rewards", "advantages") and _flat(value, _FLOATS):
            fields.append(pa.field(name, pa.list_(pa.float64())))
    return pa.schema([*fields, pa.field(JSON, pa.string())])


def _row(record: dict[str, Any], schema: Any) -> tuple[dict[str, Any], int]:
    """The record's columns, the rest as JSON, and about how many bytes it takes."""
    row: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    size = 0
    for name, value in record.items():
        at = schema.get_field_index(name)
        if at >= 0 and _fits(value, str(schema.field(at).type)):
            row[name] = _bits(value) if name == "mask" else value
            size += 8 * sum(len(one) if isinstance(one, list) else 1 for one in value)
        else:
            rest[name] = value
    if rest:
        row[JSON] = dumps(rest).decode()
        size += len(row[JSON])
    return row, size


def _bits(mask: list[list[Any]]) -> list[list[int]]:
    """Arrow takes no boolean for a number."""
    return [list(map(int, row)) for row in mask]


def _fits(value: Any, kind: str) -> bool:
    inner = next(one for one in _PLAIN if {"float64": "double"}.get(one, one) in kind)
    return _nested(value, inner) if kind.count("list<") == 2 else _flat(value, inner)


def _nested(value: Any, kind: str) -> bool:
    return isinstance(value, list) and bool(value) and all(_flat(one, kind) for one in value)


def _flat(value: Any, kind: str) -> bool:
    """Whether all elements keep their value in a column of that kind."""
    if not isinstance(value, list) or not set(map(type, value)) <= _PLAIN[kind]:
        return False
    if kind in _LARGEST and int in set(map(type, value)):
        return all(type(one) is not int or abs(one) <= _LARGEST[kind] for one in value)
    return True
