"""What a report shows of a table's records beside their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.choose.rows import is_label
from grpo_cli.records.parse.record import record_id
from grpo_cli.records.record import Record
from grpo_cli.records.tables.cells import listed
from grpo_cli.records.tables.columns import Columns
from grpo_cli.records.tables.files import package
from grpo_cli.records.tables.stretches import Stretch


def headers(columns: Columns) -> list[Record]:
    """The records of a stretch without their numbers.

    Raises:
        InputError: for a column that cannot be read.
    """
    try:
        return _headers(columns)
    except InputError as error:
        error.source = columns.rows.source
        raise


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
