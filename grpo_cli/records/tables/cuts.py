"""Where a Parquet file of rows of one response each can be cut: between groups.

Only the columns that say which rows are a group are read for it. Row groups with nothing between
them but a group that straddles their border go to a worker together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.errors import InputError
from grpo_cli.records.choose.grouping import Grouping, again
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.tables.cells import JSON
from grpo_cli.records.tables.files import Cut, Rows, parquet_file
from grpo_cli.records.translate import is_plain

_LEAST = 4 << 20
"""Bytes of packed rows that a piece has at least."""


def between_groups(pa: Any, source: Source, size: int, grouping: Grouping) -> Iterator[Rows] | None:
    """The pieces of a file; None where its groups cannot be seen in columns alone."""
    names = columns_of(grouping)
    if names is None or not _are_seen(pa, parquet_file(source.path), names):
        return None
    return _cut(pa, source, size, grouping, names)


def columns_of(grouping: Grouping) -> list[str] | None:
    """The columns whose values are equal in a group; None where that is not all there is to it."""
    if grouping.anywhere or any(len(path) > 1 for path in grouping.by):
        return None
    return [str(path[0]) for path in grouping.by]


def _are_seen(pa: Any, file: Any, names: list[str]) -> bool:
    schema, meta = file.schema_arrow, file.metadata
    if len(set(schema.names)) < len(schema.names) or JSON in schema.names:
        return False
    if not is_plain(tuple(schema.names)) or not set(names) <= set(schema.names):
        return False
    kinds = [schema.field(name).type for name in names]
    types = pa.types
    if not all(
        types.is_integer(k) or types.is_string(k) or types.is_large_string(k) for k in kinds
    ):
        return False
    chunks = (
        meta.row_group(part).column(at)
        for part in range(meta.num_row_groups)
        for at in range(meta.num_columns)
    )
    known = (chunk.statistics for chunk in chunks if chunk.path_in_schema in names)
    return all(one is not None and one.has_null_count and one.null_count == 0 for one in known)


@dataclass
class _Groups:
    """The groups of a file, as their columns are read.

    Attributes:
        grouping: how rows go together.
        names: the columns that say so.
        seen: the keys of all groups so far.
        last: that of the group that may go on.
        faults: first row of a group → why it cannot be one.
    """

    grouping: Grouping
    names: list[str]
    seen: set[Any] = field(default_factory=set)
    last: Any = None
    faults: dict[int, InputError] = field(default_factory=dict)

    def begin(self, file: Any, part: int, first: int) -> I64:
        """The rows with which groups begin, of a row group whose first row is ``first``."""
        count = file.metadata.row_group(part).num_rows
        if self.grouping.size or not count:
            size = self.grouping.size or 1
            return np.arange(first + -first % size, first + count, size)
        table = file.read_row_group(part, columns=self.names, use_threads=False)
        columns = [table.column(name).to_numpy() for name in self.names]
        changed = np.ones(count, dtype=np.bool_)
        changed[1:] = reduce(np.logical_or, [column[1:] != column[:-1] for column in columns])
        changed[0] = _keys(columns, [0]) != [self.last]
        starts = np.flatnonzero(changed)
        self._look(_keys(columns, starts), (starts + first).tolist())
        return starts + first

    def _look(self, keys: Iterable[tuple[Any, ...]], rows: list[int]) -> None:
        """Looks for groups that were there before."""
        for key, row in zip(keys, rows, strict=True):
            if key in self.seen:
                self.faults[row] = again(key, None, None, self.grouping)
            self.seen.add(key)
            self.last = key

    def end(self, rows: int) -> None:
        """Says that the last group is short; the error is made where it is put together."""
        short = rows % self.grouping.size if self.grouping.size else 0
        if short:
            self.faults[rows - short] = InputError("")

    def take(self, bounds: I64) -> dict[int, InputError]:
        """The faults of groups with these bounds, by their number."""
        found = {row: self.faults.pop(row) for row in [*self.faults] if row < bounds[-1]}
        numbers = np.searchsorted(bounds, list(found)).tolist()
        return dict(zip(numbers, found.values(), strict=True))


def _keys(columns: list[Any], rows: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def _cut(
    pa: Any, source: Source, size: int, grouping: Grouping, names: list[str]
) -> Iterator[Rows]:
    groups, starts, begin = _Groups(grouping, names), [np.zeros(0, np.int64)], 0
    file = parquet_file(source.path)
    counts = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    firsts = [0, *np.cumsum(counts).tolist()]
    per_row = size / firsts[-1]
    try:
        for part, first in enumerate(firsts[:-1]):
            new = groups.begin(file, part, first)
            if len(new) and (new[0] - begin) * per_row >= _LEAST:
                bounds = np.append(np.concatenate(starts), new[0])
                yield _piece(source, firsts, bounds, groups.take(bounds), per_row)
                begin, starts = int(new[0]), []
            starts.append(new)
        groups.end(firsts[-1])
        bounds = np.append(np.concatenate(starts), firsts[-1])
        faults = groups.take(bounds)
    except (pa.ArrowException, OSError, ValueError):
        # Whoever reads the rest, row by row, says what is damaged.
        bounds, faults = np.array([begin, firsts[-1]]), {-1: InputError("")}
    yield _piece(source, firsts, bounds, faults, per_row)


def _piece(
    source: Source,
    firsts: Sequence[int],
    bounds: I64,
    faults: Mapping[int, InputError],
    per_row: float,
) -> Rows:
    begin, end = int(bounds[0]), int(bounds[-1])
    parts = range(bisect_right(firsts, begin) - 1, bisect_left(firsts, end))
    cut = Cut(tuple(parts), begin - firsts[parts[0]], end - begin, faults)
    held = int((end - begin) * per_row)
    return Rows(source.name, source.path, "parquet", None, begin, held, cut)
