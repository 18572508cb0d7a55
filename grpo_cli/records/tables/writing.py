"""Records under their canonical names, as lines of JSON and as a Parquet file."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any, BinaryIO, Self

import numpy as np
import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS, canonical_name, read_fields
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.cells import JSON, is_list
from grpo_cli.records.tables.files import package

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


class Sink:
    """A Parquet file that is written as batches come; all need the first one's columns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._writer: Any = None
        self._held: list[Any] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write()
        with nullcontext() if kind is None else suppress(Exception):  # an error is on its way
            if self._writer is not None:
                self._writer.close()

    def add(self, batch: Any) -> None:
        """Appends rows."""
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        pa = package()
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        if self._writer is None:
            self._writer = _writer(pa, self._stream, table.schema, **_packing(pa, table))
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._held, self._bytes = [], 0


class Table(Sink):
    """A Parquet file of canonical records, written in row groups as they come.

    A field has a column of its own where each of its values is lists of lists of tokens' numbers,
    or a list with a number for each response; what else there is goes to ``grpo_json``. The first
    record says which fields these are.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._schema: Any = None
        self._waiting: list[dict[str, Any]] = []
        self._size = 0

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._flush()
            if self._schema is None:
                raise InputError("no records to write")
        super().__exit__(kind, *rest)

    def add_record(self, record: dict[str, Any]) -> None:
        """Appends a record.

        Raises:
            InputError: for what JSON cannot hold; its path is the key.
        """
        if self._schema is None:  # the first of all records decides on the columns
            self._schema = _schema(package(), record)
        row, size = _row(record, self._schema)
        self._waiting.append(row)
        self._size += size
        if self._size >= _WAITING:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self.add(package().RecordBatch.from_pylist(self._waiting, schema=self._schema))
        self._waiting, self._size = [], 0


def _schema(pa: Any, first: dict[str, Any]) -> Any:
    fields = []
    for name, value in first.items():
        kind = _TYPES.get(name, _FLOATS if name in ("rewards", "advantages") else "")
        if kind and _nested(value, kind):
            fields.append(pa.field(name, pa.list_(pa.list_(getattr(pa, kind)()))))
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


def canonical(raw: Raw, place: int) -> dict[str, Any]:
    """A record's object under canonical names.

    It keeps everything else that the object has, and is given the id that reports
    call it by its new place otherwise.
    """
    value = raw.plain()
    fields = read_fields(value)
    own = {key: name for name, key in fields.names.items()}
    kept = {
        own.get(key, key): one
        for key, one in value.items()  # but what would mean something under its name
        if key in own or (one is not None and canonical_name(key) not in own.values())
    }
    return kept if has_id(kept) or raw.number == place else named(kept, raw.number)


def has_id(value: dict[str, Any]) -> bool:
    """Whether reports call a record by an id of its own."""
    return isinstance(value.get("id"), str | int | float)


def named(value: dict[str, Any], number: int) -> dict[str, Any]:
    """A record with a number for its id."""
    return {"id": number} | {name: one for name, one in value.items() if name != "id"}


def dumps(value: dict[str, Any]) -> bytes:
    """One line of JSON, without its end; NaN and infinities as Python and JavaScript spell them.

    orjson writes null for them, which would be another error, or none where they are masked.

    Raises:
        InputError: for what JSON cannot hold; its path is the key.
    """
    try:
        data = orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or more than 254 levels
        return _by_key(value)
    return _by_key(value) if b"null" in data else data


def _by_key(value: dict[str, Any]) -> bytes:
    parts = (
        f"{json.dumps(key, ensure_ascii=False)}: {_part(key, part)}" for key, part in value.items()
    )
    return f"{{{', '.join(parts)}}}".encode("utf-8", "replace")


def _part(key: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_other)
    except RecursionError:
        raise InputError("nested too deeply to be written as JSON", path=key) from None
    except TypeError as error:
        kind = str(error).rpartition(" ")[2]
        message = (
            f"expected a value that JSON can hold, got {kind}; convert it to text or leave it out"
        )
        raise InputError(message, path=key) from None


def _other(value: Any) -> Any:
    """A date as orjson writes it."""
    return orjson.loads(orjson.dumps(value))


GROUP_BYTES = 16 << 20
"""What a row group has at least, unpacked."""

_SAMPLE = 1 << 16
_WORTH_IT = 0.9
"""The share of its bytes to which packing must bring a column that is packed: others are noise,
and packing those is half of what writing costs."""


def _writer(pa: Any, stream: BinaryIO, schema: Any, **packing: Any) -> Any:
    options = {"store_schema": False, **packing}
    try:  # small pages cost a quarter of the writing
        return pa.parquet.ParquetWriter(stream, schema, max_rows_per_page=1 << 20, **options)
    except TypeError:  # before they had a limit, which is how it was in older releases
        return pa.parquet.ParquetWriter(stream, schema, **options)


def _packing(pa: Any, table: Any) -> dict[str, Any]:
    """How columns are packed: by what it does to the first rows, zstd and a dictionary."""
    packed, repeated = {}, []
    for field in table.schema:
        chunk, name, kind = table.column(field.name).chunk(0), field.name, field.type
        while is_list(pa, kind):
            chunk, name, kind = chunk.flatten(), f"{name}.list.element", kind.value_type
        packed[name] = "zstd"
        if not pa.types.is_floating(kind):
            repeated.append(name)
            continue
        sample = chunk.slice(0, _SAMPLE).to_numpy(zero_copy_only=False)
        if 2 * len(np.unique(sample)) <= len(sample):
            repeated.append(name)
        elif len(pa.compress(sample.tobytes(), "zstd", asbytes=True)) > _WORTH_IT * sample.nbytes:
            packed[name] = "none"
    bounds = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    return {"compression": packed, "use_dictionary": repeated, "write_statistics": bounds}
