"""Canonical records → a Parquet file."""

from __future__ import annotations

from typing import Any, BinaryIO, Self

from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS
from grpo_cli.records.tables.canonical import dumps
from grpo_cli.records.tables.cells import JSON
from grpo_cli.records.tables.files import package
from grpo_cli.records.tables.sink import Sink

_WAITING = 1 << 20
"""Bytes of records that are looked at before they become columns."""
_FLOATS, _BITS, _IDS, _WORDS = "float64", "int8", "int64", "string"
_TYPES = {
    **dict.fromkeys(TOKEN_COLUMNS, _FLOATS),
    "mask": _BITS,
    **dict.fromkeys(("token_ids", "turn_ids"), _IDS),
    "tokens": _WORDS,
}
_PLAIN: dict[str, set[type]] = {
    _FLOATS: {float, int},
    _BITS: {int, bool},
    _IDS: {int},
    _WORDS: {str},
}
_LARGEST = {_BITS: 1, _IDS: 2**63 - 1, _FLOATS: 2**53}


class Table:
    """A Parquet file of canonical records, written in row groups as they come.

    A field has a column of its own where each of its values is lists of lists of tokens' numbers,
    or a list with a number for each response; what else there is goes to ``grpo_json``. The first
    record says which fields these are.

    Args:
        stream: where its bytes go.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._pa = package()
        self._sink = Sink(stream)
        self._schema: Any = None
        self._waiting: list[dict[str, Any]] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._flush()
            if self._schema is None:
                raise InputError("no records to write")
        self._sink.__exit__(kind, *rest)

    def add(self, record: dict[str, Any]) -> None:
        """Appends a record.

        Raises:
            InputError: for what JSON cannot hold; its path is the key.
        """
        if self._schema is None:  # the first of all records decides on the columns
            self._schema = _schema(self._pa, record)
        row, size = _row(record, self._schema)
        self._waiting.append(row)
        self._size += size
        if self._size >= _WAITING:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._sink.add(self._pa.RecordBatch.from_pylist(self._waiting, schema=self._schema))
        self._waiting, self._size = [], 0


def _schema(pa: Any, first: dict[str, Any]) -> Any:
    made = {"float64": pa.float64(), "int8": pa.int8(), "int64": pa.int64(), "string": pa.string()}
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
            is_mask = name == "mask"  # Arrow takes no boolean for a number
            row[name] = [list(map(int, one)) for one in value] if is_mask else value
            size += 8 * sum(len(one) if isinstance(one, list) else 1 for one in value)
        else:
            rest[name] = value
    if rest:
        row[JSON] = dumps(rest).decode()
        size += len(row[JSON])
    return row, size


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
