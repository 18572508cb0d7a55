"""How much Arrow's columns hold, before anything is made of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from grpo_cli.records.open.budget import ROW, STREAMED, VALUE, Budget

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
    """A table of flatbuffers: fields by number, each of which may be missing."""

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
