"""Rows of a table that are read together, and what their columns are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.errors import InputError
from grpo_cli.records.fields import ACTION, GROUPS, canonical_name, fields_of
from grpo_cli.records.packed import PLAIN
from grpo_cli.records.record import Raw
from grpo_cli.records.tables import arrow
from grpo_cli.records.tables.cells import JSON, is_single, rows
from grpo_cli.records.tables.files import Rows, damage, package
from grpo_cli.records.translate import is_plain
from grpo_cli.records.unread import STEP_FIELDS

FRAMEWORK = "framework"
"""The column that names the framework which computed the records."""

Items = Iterator[Raw | InputError]


class Kind(NamedTuple):
    """What a table's columns are, where it can be read by columns.

    Attributes:
        keys: the columns' names, but for that of JSON.
        by: those whose values are equal in a group.
        single: whether a row is one response.
        needed: the columns that are read; None for all of them.
    """

    keys: tuple[str, ...]
    by: tuple[str, ...]
    single: bool
    needed: list[str] | None


def kind_of(pa: Any, schema: Any, by: Sequence[str]) -> Kind | None:
    """How a table is read by columns; None where it has to be read row by row.

    Args:
        pa: pyarrow.
        schema: the table's.
        by: the columns that say which rows are a group.
    """
    names = list(schema.names)
    keys = tuple(name for name in names if name != JSON)
    if len(set(names)) < len(names) or GROUPS in keys or not is_plain(keys):
        return None
    fields = fields_of(keys)
    if fields is None:
        return None
    if fields.hyperparameters or not fields.names.keys() <= PLAIN - {"hyperparameters"}:
        return None
    also = {ACTION, FRAMEWORK, *STEP_FIELDS, *by}
    also |= {one.key for each in fields.misnamed.values() for one in each}
    needed = [one for one in names if canonical_name(one) or one in also]
    return Kind(keys, tuple(by), is_single(pa, schema), None if JSON in names else needed)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Rows that follow each other, and the records or groups that they are.

    Attributes:
        batch: the columns that were read.
        kind: what they are.
        source: the file as the user named it.
        first: the 0-based number of the first row.
        bounds: [G+1] where each group begins and the last one ends; None: each row is a record.
        faults: the groups that cannot be one, and why.
        piece: what they are rows of.
    """

    batch: Any
    kind: Kind
    source: str
    first: int
    bounds: I64 | None = None
    faults: Mapping[int, InputError] = field(default_factory=dict)
    piece: Rows | None = None

    @property
    def count(self) -> int:
        """How many records it has."""
        found: int = self.batch.num_rows if self.bounds is None else len(self.bounds) - 1
        return found

    @property
    def beginning(self) -> Stretch:
        """Its first record alone."""
        bounds = None if self.bounds is None else self.bounds[:2]
        rows = 1 if bounds is None else int(bounds[-1])
        return Stretch(self.batch.slice(0, rows), self.kind, self.source, self.first, bounds)

    def rows(self) -> Items:
        """Its rows one by one; 0 stands for what was not read, which messages name by its key."""
        unread = {key: 0 for key in self.kind.keys if self.batch.schema.get_field_index(key) < 0}
        for row in rows(package(), self.batch, self.source, self.first):
            if isinstance(row, Raw):
                row.kept |= unread
            yield row


class Lazily(Sequence[Raw | InputError]):
    """The records of a stretch, each made from its rows when it is asked for."""

    def __init__(self, stretch: Stretch, read: Callable[[Stretch], Items]) -> None:
        self._stretch, self._read = stretch, read

    def __len__(self) -> int:
        return self._stretch.count

    def __iter__(self) -> Items:
        return self._read(self._stretch)

    @overload
    def __getitem__(self, at: int) -> Raw | InputError: ...
    @overload
    def __getitem__(self, at: slice) -> list[Raw | InputError]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return next(self._read(self._stretch.beginning)) if at == 0 else list(self)[at]


def first_row(stretch: Stretch) -> Raw | InputError | None:
    """A stretch's first row with all columns; of those that were not read, the file's alone."""
    pa, batch = package(), stretch.batch.slice(0, 1)
    if stretch.kind.needed is not None:
        if stretch.first or stretch.piece is None:
            return None
        try:
            batch = arrow.first_row(pa, stretch.piece)
        except (pa.ArrowException, OSError, ValueError):
            return None
    return next(rows(pa, batch, stretch.source, stretch.first), None)


def stretches(piece: Rows, by: Sequence[str]) -> Iterator[Stretch] | None:
    """A piece of a table in stretches; None where it has to be read row by row.

    Args:
        piece: which rows.
        by: the columns that say which rows are a group.
    """
    pa = package()
    try:
        kind = kind_of(pa, arrow.schema_of(pa, piece), by)
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    return None if kind is None else _stretches(pa, piece, kind)


def _stretches(pa: Any, piece: Rows, kind: Kind) -> Iterator[Stretch]:
    with damage(pa, piece.source):
        found = arrow.batches(pa, piece, kind.needed)
        if piece.cut is not None:
            yield from _of_groups(pa, piece, found, kind)
            return
        first = piece.first
        for batch in found:
            yield Stretch(batch, kind, piece.source, first, piece=piece)
            first += batch.num_rows


def _of_groups(pa: Any, piece: Rows, batches: Iterator[Any], kind: Kind) -> Iterator[Stretch]:
    """Stretches that end where a group ends; what is left of a batch goes before the next one."""
    assert piece.cut is not None
    bounds, skip, held, begin = piece.cut.bounds, piece.cut.skip, None, 0
    for batch in batches:
        rest = batch.slice(min(skip, batch.num_rows))
        skip -= batch.num_rows - rest.num_rows
        held = rest if held is None else pa.concat_batches([held, rest])
        end = int(np.searchsorted(bounds, bounds[begin] + held.num_rows, side="right")) - 1
        if end > begin:
            first, size = int(bounds[begin]), int(bounds[end] - bounds[begin])
            faults = {at - begin: piece.cut.faults[at] for at in _within(piece, begin, end)}
            inside = bounds[begin : end + 1] - first
            yield Stretch(
                held.slice(0, size),
                kind,
                piece.source,
                piece.first + first,
                inside,
                faults,
                piece,
            )
            held, begin = held.slice(size), end
        if end == len(bounds) - 1:
            return


def _within(piece: Rows, begin: int, end: int) -> list[int]:
    assert piece.cut is not None
    return [at for at in piece.cut.faults if at < 0 or begin <= at < end]
