"""What a report shows of a table's records beside their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.parse.record import record_id
from grpo_cli.records.record import Record
from grpo_cli.records.tables.cells import listed
from grpo_cli.records.tables.columns import Columns
from grpo_cli.records.tables.files import package


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
    each = zip(
        columns.written.by_record(columns.written.widths.tolist()),
        range(stretch.count) if stretch.bounds is None else stretch.bounds[:-1].tolist(),
        repeat(None) if grouped else _ids(columns),
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


def _labels(columns: Columns) -> Iterator[list[Any] | None]:
    """What the groups of each record are called."""
    if columns.written.labels is not None:
        names = columns.written.by_record(_group_labels(columns))
        return (list(dict.fromkeys(labels)) for labels in names)
    stretch = columns.rows
    if stretch.bounds is None or not stretch.kind.by:
        return repeat(None)
    starts = stretch.bounds[:-1]
    columns_of_key = map(stretch.batch.column, stretch.kind.by)
    by = [one.to_numpy(zero_copy_only=False)[starts].tolist() for one in columns_of_key]
    if len(by) == 1:
        return ([name] for name in by[0])
    return (["/".join(map(str, parts))] for parts in zip(*by, strict=True))


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
