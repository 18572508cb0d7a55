"""Rows of a chunk → an Arrow batch: the columns and names of the rows that are printed as lines.

What many rows have in common, such as the id of their record, is stored once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from grpo_cli.batch import I64
from grpo_cli.engine.rows.fields import (
    KINDS,
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    TOKEN,
    Field,
    Kind,
    Level,
)
from grpo_cli.engine.rows.rows import record_fields
from grpo_cli.engine.rows.source import Source
from grpo_cli.records.tables.files import package

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record


def batch_of(
    records: Sequence[Record], breakdown: Breakdown, *, level: Level, fields: tuple[str, ...]
) -> list[Any]:
    """The rows of some records as one Arrow batch; none of no records.

    Args:
        records: those that ``breakdown`` is of.
        breakdown: the numbers.
        level: what one row is.
        fields: the names of the columns, in this order.
    """
    if not records:
        return []
    source = Source(records, breakdown)
    columns = _COLUMNS[level](source, fields)
    return [package().record_batch([columns[name] for name in fields], names=list(fields))]


def row_of(row: Mapping[str, Any]) -> Any:
    """One row as a batch."""
    made = [column(name, [value]) for name, value in row.items()]
    return package().record_batch(made, names=list(row))


def none_of(names: Sequence[str]) -> Any:
    """A batch of these columns without a row."""
    return package().record_batch([column(name, []) for name in names], names=list(names))


def column(name: str, values: Sequence[Any]) -> Any:
    """A column under one of the names of fields."""
    pa = package()
    if isinstance(values, np.ndarray):
        return pa.array(values)
    if _kind_of(name) == "any":
        return _of_any_type(name, values)
    return pa.array(values, _kind(name))


def _kind(name: str) -> Any:
    pa = package()
    types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
    return types[_kind_of(name)]


def _kind_of(name: str) -> Kind:
    """What a column's values are; of a field that names a batch, what the user's data have."""
    return KINDS.get(name, "any")


def _nothing(name: str, count: int) -> Any:
    return package().nulls(count, _kind(name))


def _of_any_type(name: str, values: Sequence[Any]) -> Any:
    """Numbers, text, or the rewards of several functions; as text where there are both."""
    pa = package()
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.array(values, pa.float64() if name == "reward" else pa.int64())
    if kinds == {int, float}:
        return pa.array([None if one is None else float(one) for one in values], pa.float64())
    if kinds == {int} and max(one for one in values if one is not None) >= 2**63:
        unsigned = all(one is None or one >= 0 for one in values)
        return pa.array(values, pa.uint64()) if unsigned else pa.array(texts(values))
    return pa.array(values if len(kinds) == 1 else texts(values))


def texts(values: Sequence[Any]) -> list[str | None]:
    """Values as text: what is none, as JSON has it."""
    return [
        one if one is None or isinstance(one, str) else orjson.dumps(one).decode() for one in values
    ]


def _records(source: Source, fields: tuple[str, ...]) -> dict[str, Any]:
    found = _read(record_fields(source), fields, source)
    return {name: column(name, values) for name, values in found}


def _responses(source: Source, fields: tuple[str, ...]) -> dict[str, Any]:
    columns = {name: column(name, values) for name, values in _read(RESPONSE, fields, source)}
    counts = source.summary.records.lengths
    return _about(record_fields(source), [*{*fields} - {*columns}], source, counts) | columns


def _tokens(source: Source, fields: tuple[str, ...]) -> dict[str, Any]:
    summary = source.summary
    context = (*source.by, *RECORD_CONTEXT)
    own = [name for name in fields if name not in (*context, *RESPONSE_CONTEXT)]
    about = [name for name in context if name in fields]
    of_response = [name for name in RESPONSE_CONTEXT if name in fields]
    columns = _about(record_fields(source), about, source, summary.record_tokens.lengths)
    columns |= _about(RESPONSE, of_response, source, summary.responses.lengths)
    count = summary.responses.total
    for name, values in _read(TOKEN, [name for name in own if name != "clip"], source):
        columns[name] = _nothing(name, count) if values is None else column(name, values)
    if "clip" in own:
        columns["clip"] = _sides(source)
    return columns


def _sides(source: Source) -> Any:
    """[N] the side on which the clip bound each token."""
    pa, clip = package(), source.breakdown.clip
    codes = pa.array((clip == 1).astype(np.int32), mask=clip == 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(["low", "high"]))


def _about(table: Sequence[Field], names: list[str], source: Source, counts: I64) -> dict[str, Any]:
    """What all rows of a record, or of a response, have in common."""
    columns = {}
    for name, values in _read(table, names, source):
        columns[name] = _repeated(column(name, values), counts)
    return columns


def _repeated(values: Any, counts: I64) -> Any:
    """Each value as often as it counts."""
    pa = package()
    if pa.types.is_nested(values.type):
        each = zip(values.to_pylist(), counts.tolist(), strict=True)
        return pa.array([one for one, count in each for _ in range(count)], values.type)
    return values.dictionary_encode().take(pa.array(np.arange(len(values)).repeat(counts)))


def _read(table: Sequence[Field], wanted: Sequence[str], source: Source) -> list[tuple[str, Any]]:
    return [(field.name, field.read(source)) for field in table if field.name in wanted]


_COLUMNS: Mapping[str, Callable[[Source, tuple[str, ...]], dict[str, Any]]] = {
    "record": _records,
    "response": _responses,
    "token": _tokens,
}
