"""Canonical records → a Parquet file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import iconcat
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS
from grpo_cli.records.packed import PLAIN_COLUMNS, Packed, Unusual
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


_EXACT = 2.0**53
"""Integers from here on are no floats; what is that large is looked at as it was written."""


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush()
            if self._schema is None:
                raise InputError("no records to write")
        self._sink.__exit__(kind, error, traceback)

    def add(self, record: dict[str, Any]) -> None:
        """Appends a record.

        Raises:
            InputError: for what JSON cannot hold; its path is the key.
        """
        row, size = _row(record, self._columns(record))
        self._waiting.append(row)
        self._size += size
        if self._size >= _WAITING:
            self._flush()

    def add_packed(self, records: Sequence[dict[str, Any]], packed: Packed) -> bool:
        """Appends records whose numbers are packed; False where each has to be looked at."""
        try:
            columns = packed_columns(self._pa, self._columns(records[0]), records, packed)
            rest = [{key: part for key, part in one.items() if key not in columns}
                    for one in records]  # fmt: skip
            texts = [dumps(one).decode() if one else None for one in rest]
        except (InputError, Unusual, self._pa.ArrowException, OverflowError):
            return False
        self._flush()
        columns[JSON] = self._pa.array(texts, self._pa.string())
        made = [columns.get(field.name) for field in self._schema]
        for at, field in enumerate(self._schema):
            if made[at] is None:
                made[at] = self._pa.nulls(len(records), field.type)
        self._sink.add(self._pa.record_batch(made, schema=self._schema))
        return True

    def _columns(self, first: dict[str, Any]) -> Any:
        """The columns, which the first of all records decides on."""
        if self._schema is None:
            self._schema = _schema(self._pa, first)
        return self._schema

    def _flush(self) -> None:
        if self._waiting:
            self._sink.add(self._pa.RecordBatch.from_pylist(self._waiting, schema=self._schema))
        self._waiting, self._size = [], 0


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


def packed_columns(
    pa: Any, schema: Any, records: Sequence[Mapping[str, Any]], packed: Packed
) -> dict[str, Any]:
    """The columns that packed records have of a table.

    Args:
        pa: pyarrow.
        schema: the table's.
        records: the same as canonical objects.
        packed: their numbers.

    Raises:
        Unusual: where a number has to be looked at.
    """
    made = {}
    for field in schema:
        values = _values(pa, field, records, packed)
        if field.name in records[0] and values is not None:
            if not _is_flat(field):
                values = pa.ListArray.from_arrays(_offsets(packed.widths), values)
            made[field.name] = pa.ListArray.from_arrays(_offsets(packed.counts), values)
    return made


def _is_flat(field: Any) -> bool:
    """Whether it has a number for each response."""
    return str(field.type).count("list<") == 1


def _offsets(lengths: I64) -> NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int32))).astype(np.int32)


def _values(pa: Any, field: Any, records: Sequence[Mapping[str, Any]], packed: Packed) -> Any:
    """What is in a column's lists; None where the records have nothing of this kind."""
    name = field.name
    if name == "turn_ids" and name in packed.columns:
        return pa.array(packed.columns[name].astype(np.int64))
    if name in PLAIN_COLUMNS:
        return _floats(pa, packed.columns.get(name))
    if name == "mask":
        whole = np.ones(packed.widths.sum(), np.bool_) if packed.mask is None else packed.mask
        return pa.array(whole.view(np.int8))
    if name == "rewards":
        return _floats(pa, packed.scores.get(name))
    if name == "advantages":
        flat = packed.scores.get(name)
        return _floats(pa, flat if _is_flat(field) else packed.columns.get("token_advantages"))
    if name in ("tokens", "token_ids") and name in records[0]:
        rows: list[list[Any]] = reduce(iconcat, [one[name] for one in records], [])
        return pa.array(reduce(iconcat, rows, []), pa.string() if name == "tokens" else pa.int64())
    return None


def _floats(pa: Any, numbers: F64 | None) -> Any:
    if numbers is None:
        return None
    if not (np.abs(numbers) < _EXACT).all():
        raise Unusual
    return pa.array(numbers)
