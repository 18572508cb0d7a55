"""Parquet and Arrow files; needs pyarrow, the extra ``parquet``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.decode.text import as_object, decode
from grpo_cli.records.fields import TOKEN_COLUMNS, canonical_name
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.places import got
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.pieces import Rows

JSON = "grpo_json"
"""The column that holds as JSON what has no column of its own."""

_ROWS = 256
_BY_TOKEN = {*TOKEN_COLUMNS, "mask", "token_ids"}
_BY_RESPONSE = {"rewards", "reward_baselines", "advantages", "group_ids"}
Cells = Callable[[int], Any]


def package() -> Any:
    """Pyarrow, imported when it is needed.

    Raises:
        InputError: where it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        advice = "pip install 'grpo-cli[parquet]'"
        raise InputError(f"Parquet and Arrow need one more package: {advice}") from None
    return pyarrow


def slices(source: Source, kind: str, size: int, *, whole: bool) -> Iterator[Rows]:
    """The row groups of a Parquet file, the batches of an Arrow file.

    Raises:
        InputError: where it is damaged.
    """
    pa = package()
    try:
        counts = _counts(pa, source.path, kind)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _damaged(error, source.name) from None
    if not sum(counts):
        raise InputError("no records: the table has no rows", source=source.name)
    if whole or kind == "arrow-stream":
        yield Rows(source.name, source.path, kind, None, 0, size)
        return
    first = 0
    for part, count in enumerate(counts):
        if count:
            yield Rows(source.name, source.path, kind, part, first, size // len(counts))
        first += count


def _counts(pa: Any, path: str, kind: str) -> list[int]:
    if kind == "parquet":
        with pa.parquet.ParquetFile(path) as file:
            meta = file.metadata
            return [meta.row_group(part).num_rows for part in range(meta.num_row_groups)]
    return [batch.num_rows for batch in _batches(pa, path, kind, None)]


def _damaged(error: Exception, source: str) -> InputError:
    return InputError(
        f"the file is damaged: {(str(error).splitlines() or ['?'])[0]}", source=source
    )


def raws(
    source: str, path: str, kind: str, part: int | None, first: int
) -> Iterator[Raw | InputError]:
    """The rows of a part of a file."""
    pa = package()
    try:
        for batch in _batches(pa, path, kind, part):
            if kind != "parquet":
                batch.validate(full=True)  # what an Arrow file says of itself is taken as it is
            yield from rows(pa, batch, source, first)
            first += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _damaged(error, source) from None


def _batches(pa: Any, path: str, kind: str, part: int | None) -> Iterator[Any]:
    if kind == "parquet":
        with pa.parquet.ParquetFile(path) as file:
            groups = None if part is None else [part]
            yield from file.iter_batches(_ROWS, row_groups=groups)
        return
    with pa.memory_map(path) as stream:
        if kind == "arrow-stream":
            yield from pa.ipc.open_stream(stream)
            return
        file = pa.ipc.open_file(stream)
        for number in range(file.num_record_batches) if part is None else [part]:
            yield file.get_batch(number)


def rows(pa: Any, batch: Any, source: str, first: int) -> Iterator[Raw | InputError]:
    """The records of a batch whose first row has this 0-based number."""
    single = _is_single(pa, batch.schema)
    columns = {
        field.name: _cells(pa, batch.column(at), field.name, single=single)
        for at, field in enumerate(batch.schema)
    }
    size = max(1, batch.nbytes // max(1, batch.num_rows))
    for row in range(batch.num_rows):
        value = {name: cell for name, cells in columns.items() if (cell := cells(row)) is not None}
        prefix = f"[{first + row}]."
        if JSON in value:
            try:
                value |= _object(value.pop(JSON))
            except InputError as error:
                error.source, error.path = source, prefix + JSON
                yield error
                continue
        yield Raw(value, source, None, prefix, size, arrays=True)


def _object(text: Any) -> dict[str, Any]:
    if not isinstance(text, str):
        raise InputError(f"expected a string with a JSON object, got {got(text)}")
    return as_object(decode(text.encode()))


def _is_single(pa: Any, schema: Any) -> bool:
    """Whether a row is one response: flat token columns beside a number for the response."""
    flat, depth = False, {}
    for field in schema:
        name = canonical_name(field.name)
        depth[name] = _depth(pa, field.type)
        flat |= name in TOKEN_COLUMNS and depth[name] == 1
    scalar = any(depth.get(name) == 0 for name in ("rewards", "advantages"))
    words = any(depth.get(name) == 1 for name in ("tokens", "token_ids"))
    return flat and (scalar or (words and depth.get("rewards") != 1))


def _depth(pa: Any, kind: Any) -> int:
    depth = 0
    while _is_list(pa, kind):
        kind, depth = kind.value_type, depth + 1
    return depth


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _cells(pa: Any, column: Any, name: str, *, single: bool) -> Cells:
    """What a column has in a row, its numbers as arrays where that is worth it."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind, depth = column.type, _depth(pa, column.type)
    known = canonical_name(name)
    if depth == 2 and _is_number(pa, kind.value_type.value_type):
        return _nested(column)
    if single and depth == 1 and known in _BY_TOKEN and _is_number(pa, kind.value_type):
        rows = _flat(column)
        return lambda row: None if (one := rows(row)) is None else [one]
    try:
        values = _plain(pa, column)
    except OverflowError as error:
        advice = "cast the column or leave it out"
        raise InputError(f"cannot read {kind} ({error}); {advice}", path=name) from None
    if single and known in ("tokens", *(_BY_RESPONSE if depth == 0 else ())):
        return lambda row: None if values[row] is None else [values[row]]
    if pa.types.is_struct(kind):
        return lambda row: _without_nulls(values[row])
    return values.__getitem__


def _plain(pa: Any, column: Any) -> list[Any]:
    """A column as Python's values; as text where those lack the digits of its nanoseconds."""
    try:
        values: list[Any] = column.to_pylist()
    except ValueError:
        values = column.cast(pa.string()).to_pylist()
    return values


def _is_number(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _flat(column: Any) -> Cells:
    """Rows of numbers; a null among floats is NaN."""
    numbers = column.values.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "O":  # booleans with a null among them
        numbers = np.array([np.nan if one is None else one for one in numbers], dtype=np.float64)
    offsets = column.offsets.to_numpy().tolist()
    absent = _nulls(column)
    return lambda row: None if absent and absent[row] else numbers[offsets[row] : offsets[row + 1]]


def _nested(column: Any) -> Cells:
    inner = _flat(column.values)
    offsets = column.offsets.to_numpy().tolist()
    absent = _nulls(column)

    def cell(row: int) -> Any:
        if absent and absent[row]:
            return None
        return [inner(at) for at in range(offsets[row], offsets[row + 1])]

    return cell


def _nulls(column: Any) -> list[bool]:
    return column.is_null().to_pylist() if column.null_count else []


def _without_nulls(value: Any) -> Any:
    """A struct as the object that it was made from: it has all keys, null where there was none."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(one) for key, one in value.items() if one is not None}
