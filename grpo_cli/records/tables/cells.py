"""Rows of a table → records one by one; innermost numbers stay arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS, canonical_name
from grpo_cli.records.objects import as_object, decode
from grpo_cli.records.places import got
from grpo_cli.records.record import DecodedChunk, Raw, Texts
from grpo_cli.records.tables.files import package
from grpo_cli.records.unread import PROMPT_IDS

JSON = "grpo_json"
"""The column that holds as JSON what has no column of its own."""

_BY_TOKEN = {*TOKEN_COLUMNS, "mask", "token_ids"}
_BY_RESPONSE = {"rewards", "reward_baselines", "advantages", "group_ids"}
_LONGEST = 60
Cells = Sequence[Any]


def rows(pa: Any, batch: Any, source: str, first: int) -> DecodedChunk:
    """The rows of a batch as records; an unreadable one is replaced by its error."""
    single = is_single(pa, batch.schema)
    try:
        columns = {
            field.name: _cells(pa, batch.column(at), field.name, single=single)
            for at, field in enumerate(batch.schema)
        }
    except InputError as error:
        error.source = source
        raise
    if single:
        _nest_by_token(pa, batch.schema, columns)
    size = max(1, batch.nbytes // max(1, batch.num_rows))
    names, cells = (*columns,), columns.values()
    lacks_some = any(None in column for column in cells)
    common = None if lacks_some or JSON in names else columns
    found: list[Raw | InputError] = []
    for at, own in enumerate(zip(*cells, strict=True) if cells else [()] * batch.num_rows):
        value = dict(zip(names, own, strict=True))
        if lacks_some:
            value = {name: cell for name, cell in value.items() if cell is not None}
        prefix = f"[{first + at}]."
        if JSON in value:
            try:
                value |= as_json(value.pop(JSON))
            except InputError as error:
                error.source, error.path = source, prefix + JSON
                found.append(error)
                continue
        found.append(Raw(value, source, None, prefix, size, arrays=True, columns=common, at=at))
    return DecodedChunk(found, None if common is None else names)


def as_json(text: Any) -> dict[str, Any]:
    """What the column of JSON has in a row.

    Raises:
        InputError: where it is no object.
    """
    if not isinstance(text, str):
        raise InputError(f"expected a string with a JSON object, got {got(text)}")
    return as_object(decode(text.encode()))


def is_single(pa: Any, schema: Any) -> bool:
    """Whether a row is one response: flat token columns, and a number for the response."""
    flat, deep = False, {}
    for field in schema:
        name = canonical_name(field.name)
        deep[name] = depth(pa, field.type)
        flat |= name in TOKEN_COLUMNS and deep[name] == 1
    scalar = any(deep.get(name) == 0 for name in ("rewards", "advantages"))
    words = any(deep.get(name) == 1 for name in ("tokens", "token_ids"))
    return flat and (scalar or (words and deep.get("rewards") != 1))


def depth(pa: Any, kind: Any) -> int:
    """How many lists are in each other."""
    levels = 0
    while is_list(pa, kind):
        kind, levels = kind.value_type, levels + 1
    return levels


def is_list(pa: Any, kind: Any) -> bool:
    """Whether it is a list of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _cells(pa: Any, column: Any, name: str, *, single: bool) -> Cells:
    """What a column has in each row, its numbers as arrays where that is worth it."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind, deep = column.type, depth(pa, column.type)
    known = canonical_name(name)
    if deep == 2 and _is_number(pa, kind.value_type.value_type):
        lists, offsets = _inner(column)
        inner = _flat(lists)
        return _with_nulls(column, [inner[begin:end] for begin, end in pairwise(offsets)])
    if single and deep == 1 and known in _BY_TOKEN and _is_number(pa, kind.value_type):
        return _alone(_flat(column))
    if single and known == "tokens" and _is_text(pa, column):
        texts, offsets = _inner(column)
        return _alone(_with_nulls(column, [Texts(texts, *both) for both in pairwise(offsets)]))
    values = listed(pa, column, name)
    if single and known in ("tokens", *(_BY_RESPONSE if deep == 0 else ())):
        return _alone(values)
    return [*map(_without_nulls, values)] if pa.types.is_struct(kind) else values


def _nest_by_token(pa: Any, schema: Any, columns: dict[str, Cells]) -> None:
    """Nests what has a number per token under a name that does not say so, as verl's ``responses``.

    Advantages are by token or by response, and any other column may be named by ``--map``.
    """
    names = {canonical_name(name): name for name in reversed(schema.names)}
    model = columns[next(names[name] for name in TOKEN_COLUMNS if name in names)]
    for field in schema:
        known = canonical_name(field.name)
        if known not in (None, "advantages") or field.name in PROMPT_IDS:
            continue
        if depth(pa, field.type) == 1 and _is_number(pa, field.type.value_type):
            columns[field.name] = [
                [one] if one is not None and row and len(one) == len(row[0]) else one
                for one, row in zip(columns[field.name], model, strict=True)
            ]


def _alone(cells: Cells) -> Cells:
    """Cells of one response each, as those of a record of one."""
    return [None if one is None else [one] for one in cells]


def listed(pa: Any, column: Any, name: str) -> list[Any]:
    """A column as Python's values; times of nanoseconds as text.

    Raises:
        InputError: for times that Python's calendar has not, and text that is no UTF-8.
    """
    try:
        if pa.types.is_temporal(column.type) and getattr(column.type, "unit", "") == "ns":
            column = column.cast(pa.string())  # of which Python's times lack digits
        values: list[Any] = column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        what, kind = str(error).partition("\n")[0], str(column.type)
        kind = kind if len(kind) <= _LONGEST else f"{kind[:_LONGEST]}…"
        message = f"cannot read {kind} ({what}); cast the column or leave it out"
        raise InputError(message, path=name) from None
    return values


def _is_number(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _flat(column: Any) -> Cells:
    """Rows of numbers; a null is NaN, and only its own row is not what it would be without."""
    values, offsets = _inner(column)
    if not values.null_count or str(values.type) in ("halffloat", "float", "double"):
        numbers = values.to_numpy(zero_copy_only=False)
        found = [numbers[begin:end] for begin, end in pairwise(offsets)]
    else:
        found = [_numbers(values.slice(begin, end - begin)) for begin, end in pairwise(offsets)]
    return _with_nulls(column, found)


def _numbers(values: Any) -> Any:
    found = values.to_numpy(zero_copy_only=False)
    if found.dtype.kind != "O":
        return found
    return np.array([np.nan if one is None else one for one in found], dtype=np.float64)


def _is_text(pa: Any, column: Any) -> bool:
    """Whether it has lists of texts, none of which is null or no UTF-8."""
    kind = column.type.value_type if depth(pa, column.type) == 1 else None
    if kind not in (pa.string(), pa.large_string()) or column.flatten().null_count:
        return False
    with suppress(pa.ArrowInvalid):
        column.validate(full=True)
        return True
    return False


def number_texts(rows: Sequence[Texts]) -> NDArray[Any]:
    """A number for each text of all rows, which equal ones share."""
    found = package().chunked_array([row.arrow for row in rows]).dictionary_encode()
    return np.concatenate([one.indices.to_numpy() for one in found.chunks])


def _with_nulls(column: Any, cells: Cells) -> Cells:
    if not column.null_count:
        return cells
    present = column.is_valid().to_pylist()
    return [cell if here else None for cell, here in zip(cells, present, strict=True)]


def _inner(column: Any) -> tuple[Any, list[int]]:
    """The values of a column's lists, and the place where each list begins and the last one ends.

    Rows that are a part of a table share the values of all its rows; the others' are left out.
    """
    offsets = column.offsets.to_numpy()
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return column.values.slice(first, last - first), (offsets - first).tolist()


def _without_nulls(value: Any) -> Any:
    """A struct as the object that it was made from: it has all keys, null where there was none."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(one) for key, one in value.items() if one is not None}
