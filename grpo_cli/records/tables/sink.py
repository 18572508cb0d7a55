"""Arrow batches → a Parquet file, in row groups of some megabytes, in flat memory."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any, BinaryIO, Self

import numpy as np

from grpo_cli.records.tables.cells import is_list
from grpo_cli.records.tables.files import package

GROUP_BYTES = 16 << 20
"""What a row group has at least, unpacked."""

_SAMPLE = 1 << 16
_WORTH_IT = 0.9
"""The share of its bytes to which packing must bring a column that is packed: others are noise,
and packing those is half of what writing costs."""


class Sink:
    """A Parquet file that is written as batches come; all need the first one's columns.

    Args:
        stream: where its bytes go.
    """

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
