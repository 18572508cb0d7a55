"""Rows of a table → a Batch, column by column, without a Python list in between.

It agrees bit for bit with what ``cells``, ``fast`` and ``parse`` make of the rows one by one.
Whatever is unusual, every fault included, raises ``Unusual`` and is left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from grpo_cli.batch import Segments
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import KNOWN, Value
from grpo_cli.records.choose.rows import is_label
from grpo_cli.records.fields import ACTION, GROUPS, Fields, canonical_name, read_fields
from grpo_cli.records.packed import (
    PLAIN,
    PLAIN_COLUMNS,
    Packed,
    Unusual,
    lay,
    number_groups,
    number_labels,
)
from grpo_cli.records.parse.record import record_id
from grpo_cli.records.parse.settings import read_settings
from grpo_cli.records.record import DecodedChunk, Raw, Record, in_chunks
from grpo_cli.records.tables.cells import JSON, as_json, listed
from grpo_cli.records.tables.files import Rows, package
from grpo_cli.records.tables.stretches import Items, Lazily, Stretch, first_row, stretches
from grpo_cli.records.tables.written import Written
from grpo_cli.records.translate import is_plain


class Columns:
    """The columns of plain rows: M records, R responses, N tokens.

    Args:
        pa: pyarrow.
        rows: what was read.

    Attributes:
        rows: the same.
        json: what each row has in its column of JSON; None where there is no such column.
        fields: what the keys of all rows mean.
        settings: the hyperparameters that all of them share.
        written: the columns as they were written.
        batch: the numbers, without masked tokens.

    Raises:
        Unusual: where a row has to be looked at.
    """

    def __init__(self, pa: Any, rows: Stretch) -> None:
        if rows.faults or (rows.bounds is not None and not rows.kind.single):
            raise Unusual
        self.rows = rows
        self.json = _objects(rows.batch) if JSON in rows.batch.schema.names else None
        self.fields, self.settings = self._meaning()
        self.written = Written(pa, rows, self.fields.names)
        self.packed = self._pack()
        batch = lay([self.packed])
        if batch is None:
            raise Unusual
        self.batch = batch

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the rows have."""
        return (*self.rows.kind.keys, *(self.json[0] if self.json else ()))

    def first_row(self) -> Raw | InputError | None:
        """The first row with all that it says, where that of the file is among them."""
        return first_row(self.rows)

    @property
    def advantages_given(self) -> bool:
        """Whether the rows give advantages themselves."""
        return "advantages" in self.fields.names

    def headers(self) -> list[Record]:
        """The records without their numbers.

        Raises:
            InputError: for a column that cannot be read.
        """
        try:
            return _headers(self)
        except InputError as error:
            error.source = self.rows.source
            raise

    def values(self, names: Sequence[str]) -> tuple[str, list[Any]] | None:
        """The first of some columns that is there, with its values, each once."""
        batch = self.rows.batch
        name = next((name for name in names if name in batch.schema.names), None)
        return None if name is None else (name, batch[name].unique().to_pylist())

    def _meaning(self) -> tuple[Fields, Mapping[str, Value]]:
        """What the keys of all rows mean, and their hyperparameters."""
        shared: dict[str, Any] = dict.fromkeys(self._present(), 0)
        if self.json is not None:
            shared |= _in_common(self.json, shared)
        if not is_plain(tuple(shared)):
            raise Unusual
        try:
            fields = read_fields(shared)
            settings = read_settings(shared, fields)
        except InputError:
            raise Unusual from None
        if not fields.names.keys() <= PLAIN or "log_probs_new" not in fields.names:
            raise Unusual
        return fields, settings

    def _present(self) -> Iterator[str]:
        """The columns that all rows have; a known one that only some have is unusual."""
        batch = self.rows.batch
        for key in self.rows.kind.keys:
            at = batch.schema.get_field_index(key)
            nulls = batch.column(at).null_count if at >= 0 else 0
            if nulls == 0:
                yield key
            elif nulls < batch.num_rows and (canonical_name(key) or key == ACTION):
                raise Unusual

    def _pack(self) -> Packed:
        names, written = self.fields.names, self.written
        columns = {name: written.numbers(name) for name in PLAIN_COLUMNS if name in names}
        written.check_words()
        scores = {"rewards": written.scores("rewards")} if "rewards" in names else {}
        if "advantages" in names and written.is_by_token():
            columns["token_advantages"] = written.numbers("advantages")
        elif "advantages" in names:
            scores["advantages"] = written.scores("advantages")
        groups, group_count = number_groups(self._groups(), written.counts)
        return Packed(
            counts=written.counts,
            widths=written.widths,
            columns=columns,
            mask=written.mask() if "mask" in names else None,
            scores=scores,
            groups=groups,
            group_count=group_count,
            misnamed=self.fields.first_misnamed,
            settings=[self.settings] * len(written.counts),
            fields=self.fields,
        )

    def _groups(self) -> list[list[int] | None]:
        """For each record the dense numbers of its responses' groups; None for a single one."""
        count = len(self.written.counts)
        if self.written.labels is None or len(self.written.labels) == count:
            return [None] * count
        labels = self.written.labels.to_numpy(zero_copy_only=False)
        records = Segments(self.written.counts)
        if np.array_equal(labels, records.spread(labels[records.starts])):
            return [None] * count
        if self.rows.bounds is not None and not self.rows.kind.by:
            raise Unusual  # rows that are a group by their number alone
        return [number_labels(part) for part in self.written.by_record(labels.tolist())]


def by_columns(
    piece: Rows, by: Sequence[str], by_rows: Callable[[Stretch], Items]
) -> Iterator[DecodedChunk] | None:
    """A piece of a table; None where it has to be read row by row.

    Args:
        piece: which rows.
        by: the columns that say which rows are a group.
        by_rows: what makes records of the rows of a stretch.
    """
    found = stretches(piece, by)
    return None if found is None else _decoded(found, piece.source, by_rows)


def _decoded(
    found: Iterator[Stretch], source: str, by_rows: Callable[[Stretch], Items]
) -> Iterator[DecodedChunk]:
    try:
        for stretch in found:
            try:
                columns = Columns(package(), stretch)
            except (Unusual, package().ArrowException):  # group labels that are no UTF-8, say
                yield from in_chunks(by_rows(stretch))
            else:
                yield DecodedChunk(Lazily(stretch, by_rows), columns=columns)
    except InputError as error:
        error.source = error.source or source
        yield DecodedChunk([error])


def _objects(batch: Any) -> list[dict[str, Any]]:
    """What each row has in its column of JSON."""
    texts = batch.column(batch.schema.get_field_index(JSON))
    try:
        return [{} if text is None else as_json(text) for text in listed(package(), texts, JSON)]
    except (InputError, ValueError):
        raise Unusual from None


def _in_common(objects: list[dict[str, Any]], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that all objects have; an id of its own, and hyperparameters that are the same."""
    first = objects[0]
    if any(one.keys() != first.keys() for one in objects[1:]) or first.keys() & columns.keys():
        raise Unusual
    for key in first:
        name = canonical_name(key)
        if key in KNOWN or name == "hyperparameters":
            wanted = repr(first[key])  # True is not 1, nor 1.0
            if any(repr(one[key]) != wanted for one in objects):
                raise Unusual
        elif name not in (None, "id") or key in (ACTION, GROUPS):
            raise Unusual
        if name is not None and any(one[key] is None for one in objects):
            raise Unusual
    return first


def _headers(columns: Columns) -> list[Record]:
    stretch = columns.rows
    grouped = stretch.bounds is not None
    names = columns.fields.names
    if grouped:  # they stand under canonical names where rows are put together
        names = {name: name for name in names if name not in ("id", "expected")}
        names |= {"id": "id"} if stretch.kind.by else {}
    each = zip(
        columns.written.by_record(columns.written.widths.tolist()),
        range(stretch.count) if stretch.bounds is None else stretch.bounds[:-1].tolist(),
        _group_ids(columns) if grouped else _ids(columns),
        _labels(columns),
        _words(columns, "tokens"),
        _words(columns, "token_ids"),
        strict=False,
    )
    return [
        Record(
            source=stretch.source,
            line=None,
            prefix=f"[{stretch.first + place}].",
            id=identity,
            widths=widths,
            columns={},
            nested=2,
            names=names,
            group_labels=labels,
            tokens=tokens,
            token_ids=ids,
        )
        for widths, place, identity, labels, tokens, ids in each
    ]


def _ids(columns: Columns) -> Iterator[str | int | float | None]:
    if "id" not in columns.fields.names:
        return repeat(None)
    if columns.json is not None and "id" in columns.json[0]:
        return map(record_id, columns.json)
    return (record_id({"id": one}) for one in _listed(columns, "id"))


def _group_ids(columns: Columns) -> Iterator[str | int | float | None]:
    """What the groups that rows were put together to are called."""
    return (record_id({"id": one}) if is_label(one) else None for one in _keys(columns.rows))


def _labels(columns: Columns) -> Iterator[list[Any] | None]:
    """What the groups of each record are called."""
    if columns.written.labels is not None:
        names = columns.written.by_record(_group_labels(columns))
        return (list(dict.fromkeys(labels)) for labels in names)
    if columns.rows.bounds is None or not columns.rows.kind.by:
        return repeat(None)
    return ([name] for name in _keys(columns.rows))


def _keys(stretch: Stretch) -> Iterator[Any]:
    """The value by which each group was put together; None where its rows were counted."""
    if stretch.bounds is None or not stretch.kind.by:
        return repeat(None)
    starts = stretch.bounds[:-1]
    columns_of_key = map(stretch.batch.column, stretch.kind.by)
    by = [one.to_numpy(zero_copy_only=False)[starts].tolist() for one in columns_of_key]
    if len(by) == 1:
        return iter(by[0])
    return ("/".join(map(str, parts)) for parts in zip(*by, strict=True))


def _group_labels(columns: Columns) -> list[Any]:
    name = columns.fields.names.get("group_ids", "group_ids")
    return listed(package(), columns.written.labels, name)


def _words(columns: Columns, name: str) -> Iterator[Any]:
    """Token strings or ids, by record and response."""
    if name not in columns.fields.names:
        return repeat(None)
    values = _listed(columns, name)
    return columns.written.by_record(values) if columns.rows.kind.single else iter(values)


def _listed(columns: Columns, name: str) -> list[Any]:
    return listed(package(), columns.written.column(name), name)
