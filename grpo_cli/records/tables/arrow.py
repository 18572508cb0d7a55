"""Parquet and Arrow files; needs pyarrow, the extra ``parquet``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.open.budget import ROW, STREAMED, VALUE, Budget
from grpo_cli.records.record import DecodedChunk, Decoding, Made
from grpo_cli.records.tables.cells import rows
from grpo_cli.records.tables.files import Rows, check_end, damage, mapped, package, parquet_file

_ROWS = 256
_TOKENS = 1 << 16
"""Numbers of a column that are read at once: they stay in cache from stage to stage."""


def slices(
    source: Source, kind: str, size: int, *, whole: bool, most: int | None = None
) -> Iterator[Rows]:
    """The row groups of a Parquet file, the batches of an Arrow file.

    Raises:
        InputError: where it is damaged, or holds more.
    """
    pa, budget = package(), Budget.of(source.path, most)
    check_end(source.name, source.path, kind)
    try:
        with damage(pa, source.name):
            counts = _counts(pa, source.path, kind, budget)
    except InputError as error:
        error.source = source.name
        raise
    if not sum(counts):
        raise InputError("no records: the table has no rows", source=source.name)
    if whole or kind == "arrow-stream":
        yield Rows(source.name, source.path, kind, None, 0, size, most)
        return
    first = 0
    for part, count in enumerate(counts):
        if count:
            yield Rows(source.name, source.path, kind, part, first, size // len(counts), most)
        first += count


def _counts(pa: Any, path: str, kind: str, budget: Budget) -> list[int]:
    """The rows of each part; the budget allows all of them."""
    if kind == "parquet":
        counts, longest = [], [0]
        meta = parquet_file(path).metadata
        for group in map(meta.row_group, range(meta.num_row_groups)):
            chunks = map(group.column, range(group.num_columns))
            longest.append(max((chunk.num_values for chunk in chunks), default=0))
            counts.append(group.num_rows)
        budget.check(max(longest), "values in one row group", VALUE // 4)
        budget.check(sum(longest), "values", STREAMED)
        budget.check(sum(counts), "rows", ROW)
        return counts
    with mapped(pa, path) as stream:
        check_messages(pa, stream, kind, budget)
    return [batch.num_rows for batch in _batches(pa, path, kind, None)]


def decoded(piece: Rows, decoding: Decoding) -> Iterator[DecodedChunk]:
    """The rows of a part of a file."""
    pa = package()
    first = piece.first
    with damage(pa, piece.source):
        for batch in _each_once(pa, piece, decoding):
            for at, column in enumerate(batch.columns):
                check_values(pa, column, piece.budget)
                if pa.types.is_dictionary(column.type):  # its size is then what it takes
                    name = batch.schema.field(at).name
                    batch = batch.set_column(at, name, column.dictionary_decode())
            yield rows(pa, batch, piece.source, first)
            first += batch.num_rows


def _batches(pa: Any, path: str, kind: str, parts: Sequence[int] | None) -> Iterator[Any]:
    """The batches of an Arrow file."""
    with mapped(pa, path) as stream:
        if kind == "arrow-stream":
            yield from pa.ipc.open_stream(stream)
            return
        file = pa.ipc.open_file(stream)
        for number in range(file.num_record_batches) if parts is None else parts:
            yield file.get_batch(number)


def _each_once(pa: Any, piece: Rows, decoding: Decoding) -> Iterator[Any]:
    """The rows of a piece as ``_some_rows`` has them."""
    rows = enumerate(_some_rows(pa, piece))

    def decode(number: int) -> Made:
        batch = next((batch for at, batch in rows if at == number), None)
        return batch, 0 if batch is None else batch.nbytes

    number = 0
    while (batch := decoding(piece.content(number), partial(decode, number))[0]) is not None:
        yield batch
        number += 1


def _some_rows(pa: Any, piece: Rows) -> Iterator[Any]:
    """The rows of a piece, a handful of numbers at once."""
    if piece.kind == "parquet":
        file = parquet_file(piece.path)
        parts = list(piece.parts or range(file.metadata.num_row_groups))
        step = _rows_at_once(file.metadata, parts, piece.budget)
        yield from file.iter_batches(step, row_groups=parts, use_threads=False)
        return
    for batch in _batches(pa, piece.path, piece.kind, piece.parts):
        batch.validate(full=True)  # what an Arrow file says of itself is taken as it is
        step = max(1, min(_ROWS, _ROWS * _TOKENS * 32 // max(1, batch.nbytes)))
        yield from (batch.slice(at, step) for at in range(0, batch.num_rows, step))


def _rows_at_once(meta: Any, parts: Sequence[int], budget: Budget) -> int:
    """As many rows as have a handful of numbers, and whose texts are within the budget.

    A text that is written once in a column chunk may be that of each of its rows.
    """
    groups = [meta.row_group(part) for part in parts]
    count = sum(group.num_rows for group in groups)
    chunks = [group.column(at) for group in groups for at in range(meta.num_columns)]
    numbers = max(
        sum(group.column(at).num_values for group in groups) for at in range(meta.num_columns)
    )
    texts = [one.total_uncompressed_size for one in chunks if one.physical_type == "BYTE_ARRAY"]
    by_text = budget.limit // max((1, *texts))
    return max(1, min(_ROWS, _TOKENS * count // max(1, numbers), by_text))


_DICTIONARY, _BATCH = 2, 3
"""Kinds of Arrow's messages."""


def check_values(pa: Any, column: Any, budget: Budget) -> None:
    """Refuses rows that hold more values, or longer texts, than the budget allows.

    Raises:
        InputError: (without its place) where they do.
    """
    types, pc = pa.types, pa.compute
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if types.is_struct(kind):
        for inner in column.flatten():
            check_values(pa, inner, budget)
    elif types.is_dictionary(kind):
        words = column.dictionary
        if types.is_string(words.type) or types.is_large_string(words.type):
            sizes = pc.binary_length(words).take(column.indices)
            budget.check(pc.sum(sizes).as_py() or 0, "bytes of text", 2)
    elif types.is_map(kind):
        budget.check(len(column.keys), "keys in some rows", VALUE)
    elif hasattr(column, "value_lengths"):
        budget.check(pc.sum(column.value_lengths()).as_py() or 0, "values in some rows", VALUE)
        check_values(pa, column.flatten(), budget)
    elif types.is_fixed_size_list(kind):
        budget.check(len(column) * kind.list_size, "values in some rows", VALUE)
        check_values(pa, column.flatten(), budget)


def check_messages(pa: Any, stream: Any, kind: str, budget: Budget) -> None:
    """Refuses an Arrow file that says of itself that it holds more than the budget allows.

    Columns may have a billion rows in no bytes, or be packed: pyarrow unpacks all of a batch.

    Raises:
        InputError: (without its source) where it does.
    """
    stream.seek(8 if kind == "arrow" else 0)
    rows, size, longest = 0, 0, [0]
    for about, body in _batches_of(pa.ipc.MessageReader.open_stream(stream)):
        longest.append(max([about.integer(0), *(length for length, _ in about.pairs(1))]))
        rows += about.integer(0)
        if about.has(3):
            places = (at for at, length in about.pairs(2) if length >= 8)
            size += sum(max(0, struct.unpack_from("<q", body, at)[0]) for at in places)
    budget.check(rows, "rows", ROW)
    budget.check(max(longest), "values in one batch", VALUE // 4)
    budget.check(sum(longest), "values", STREAMED)
    budget.check(size, "bytes, unpacked,", 1)


def _batches_of(messages: Any) -> Iterator[tuple[_Table, Any]]:
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        data = memoryview(message.metadata)
        top = _Table(data, struct.unpack_from("<I", data)[0])
        kind = data[top.place(1)] if top.has(1) else 0
        if kind in (_DICTIONARY, _BATCH):
            batch = top.table(2)
            yield batch if kind == _BATCH else batch.table(1), message.body


class _Table:
    """A table of flatbuffers: fields by number, where each may be missing."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]

    def place(self, field: int) -> int:
        """Where a field is; 0 where it is missing."""
        at = 4 + 2 * field
        if at >= struct.unpack_from("<H", self._data, self._fields)[0]:
            return 0
        offset: int = struct.unpack_from("<H", self._data, self._fields + at)[0]
        return offset and self._at + offset

    def has(self, field: int) -> bool:
        """Whether a field is there."""
        return self.place(field) > 0

    def integer(self, field: int) -> int:
        """A number; 0 where it is missing."""
        at = self.place(field)
        return int(struct.unpack_from("<q", self._data, at)[0]) if at else 0

    def table(self, field: int) -> _Table:
        """A table within this one."""
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A list of pairs of numbers."""
        if not self.has(field):
            return iter(())
        at = self._target(field)
        count = struct.unpack_from("<I", self._data, at)[0]
        return struct.iter_unpack("<qq", self._data[at + 4 : at + 4 + 16 * count])

    def _target(self, field: int) -> int:
        at = self.place(field)
        return at + int(struct.unpack_from("<I", self._data, at)[0])
