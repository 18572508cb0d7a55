"""Packed records → Arrow columns, with no Python number in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import iconcat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.records.packed import PLAIN_COLUMNS, Packed, Unusual

_EXACT = 2.0**53
"""Integers from here on are no floats; what is that large is looked at as it was written."""


def packed_columns(
    pa: Any, schema: Any, records: Sequence[Mapping[str, Any]], packed: Packed
) -> dict[str, Any]:
    """The columns that packed records have of a table.

    Args:
        pa: pyarrow.
        schema: the table's.
        records: the same as canonical objects.
        packed: their numbers.

    Raises:
        Unusual: where a number has to be looked at.
    """
    made = {}
    for field in schema:
        values = _values(pa, field, records, packed)
        if field.name in records[0] and values is not None:
            if not _is_flat(field):
                values = pa.ListArray.from_arrays(_offsets(packed.widths), values)
            made[field.name] = pa.ListArray.from_arrays(_offsets(packed.counts), values)
    return made


def _is_flat(field: Any) -> bool:
    """Whether it has a number for each response."""
    return str(field.type).count("list<") == 1


def _offsets(lengths: I64) -> NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int32))).astype(np.int32)


def _values(pa: Any, field: Any, records: Sequence[Mapping[str, Any]], packed: Packed) -> Any:
    """What is in a column's lists; None where the records have nothing of this kind."""
    name = field.name
    if name in PLAIN_COLUMNS:
        return _floats(pa, packed.columns.get(name))
    if name == "mask":
        whole = np.ones(packed.widths.sum(), np.bool_) if packed.mask is None else packed.mask
        return pa.array(whole.view(np.int8))
    if name == "rewards":
        return _floats(pa, packed.scores.get(name))
    if name == "advantages":
        flat = packed.scores.get(name)
        return _floats(pa, flat if _is_flat(field) else packed.columns.get("token_advantages"))
    if name in ("tokens", "token_ids") and name in records[0]:
        rows: list[list[Any]] = reduce(iconcat, [one[name] for one in records], [])
        return pa.array(reduce(iconcat, rows, []), pa.string() if name == "tokens" else pa.int64())
    return None


def _floats(pa: Any, numbers: F64 | None) -> Any:
    if numbers is None:
        return None
    if not (np.abs(numbers) < _EXACT).all():
        raise Unusual
    return pa.array(numbers)
