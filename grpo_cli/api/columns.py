"""The rows of a level as arrays: what pandas, polars and pyarrow take as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.engine.rows.fields import (
    COLUMNS,
    RESPONSE,
    TOKEN,
    Level,
)
from grpo_cli.engine.rows.rows import record_fields, token_columns
from grpo_cli.engine.rows.source import Source
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record

Array = NDArray[Any]


class Part(NamedTuple):
    """Records that were evaluated together."""

    records: Sequence[Record]
    breakdown: Breakdown


def columns(parts: Sequence[Part], level: Level) -> dict[str, Array]:
    """Name → one value a row, of the fields that rows of this level have.

    A number that is unknown or of nothing is NaN; a column that nothing has is not there. With
    several reward functions there is a column for each, ``reward.NAME`` or ``reward.0``.
    """
    tables = [_OF[level](Source(*part)) for part in parts]
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: _joined([table.get(name, np.full(_rows(table), np.nan)) for table in tables])
        for name in names
    }


def one_column(parts: Sequence[Part], name: str) -> Array:
    """[N] a column of the tokens; NaN where it is unknown, and 1 for a weight that there is not."""
    (field,) = [field for field in TOKEN if field.name == name]
    missing = 1.0 if name == "correction" else np.nan
    read = [(part.breakdown, field.read(Source(*part))) for part in parts]
    return np.concatenate(
        [
            np.full(len(breakdown.ratio), missing) if values is None else array(values)
            for breakdown, values in read
        ]
    )


def _rows(table: dict[str, Array]) -> int:
    return len(table["id"])


def _joined(pieces: list[Array]) -> Array:
    if len({piece.dtype.kind for piece in pieces} - {"i", "f"}) and len(pieces) > 1:
        flat = [None if value != value else value for piece in pieces for value in piece.tolist()]
        return array(flat)
    return np.concatenate(pieces) if pieces else np.empty(0)


def _of_records(source: Source) -> dict[str, Array]:
    return {field.name: array(field.read(source)) for field in record_fields(source)}


def _of_responses(source: Source) -> dict[str, Array]:
    named = {field.name: field.read(source) for field in RESPONSE}
    ids = [record.name for record in source.records]
    lengths = source.summary.records.lengths
    by = {
        field.name: np.repeat(array(field.read(source)), lengths)
        for field in record_fields(source)[: len(source.by)]
    }
    return {**by, "id": np.repeat(array(ids), lengths), **_split_up(named)}


def _of_tokens(source: Source) -> dict[str, Array]:
    about, lengths = _of_responses(source), source.summary.responses.lengths
    shared = (*source.by, "id", "response", "group")
    found = {name: np.repeat(about[name], lengths) for name in shared if name in about}
    own = {name: array(value) for name, value in token_columns(source).items() if value is not None}
    return found | own


def _split_up(named: dict[str, Any]) -> dict[str, Array]:
    """Rewards of several functions in a column each."""
    found: dict[str, Array] = {}
    for name, values in named.items():
        first = next(iter(values), None)
        if isinstance(first, dict | list):
            keys = list(first) if isinstance(first, dict) else range(len(first))
            found |= {f"{name}.{key}": array([row[key] for row in values]) for key in keys}
        else:
            found[name] = array(values)
    return found


_OF = {"record": _of_records, "response": _of_responses, "token": _of_tokens}
LEVELS = tuple(_OF)
assert set(LEVELS) < set(COLUMNS)


def array(values: Any) -> Array:
    """Numbers as numbers, None among them as NaN; anything else as objects.

    Numbers among texts are texts, as in Parquet: data frames have columns of one kind.
    """
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    given = [value for value in values if value is not None]
    if given and all(type(value) is int for value in given) and len(given) == len(values):
        return _integers(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if str in map(type, given):
        values = [str(value) if isinstance(value, int | float) else value for value in values]
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _integers(values: list[int]) -> Array:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)
