"""The ``parquet`` format: a file with a column for each field, written as rows are computed.

What many rows have in common, such as the id of their record, is stored once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import orjson

from grpo_cli.batch import I64
from grpo_cli.commands.emit import CSV
from grpo_cli.commands.eval.printing import Printing
from grpo_cli.commands.eval.run import Run, limited, totals_of
from grpo_cli.commands.options.place import part_folder
from grpo_cli.engine import Reader
from grpo_cli.engine.cluster.parts import Pack, PartFolder, joined
from grpo_cli.engine.evaluation import Encode
from grpo_cli.engine.rows.fields import KINDS, Level
from grpo_cli.engine.rows.rows import Column, columns, row_segments
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records.tables.files import package
from grpo_cli.records.tables.writing import Sink
from grpo_cli.variants.plan import Plan


def encode(printing: Printing) -> Encode:
    """The encoder of records as Arrow batches.

    Raises:
        UsageError: where pyarrow is missing.
    """
    try:
        package()
    except InputError as error:
        raise UsageError(error.message) from None
    return partial(batch_of, level=printing.level, fields=printing.names)


def batch_of(source: Source, *, level: Level, fields: tuple[str, ...]) -> list[Any]:
    """The rows of some records as one Arrow batch; none of no records.

    Args:
        source: the records.
        level: what one row is.
        fields: the names of the columns, in this order.
    """
    if not source.records:
        return []
    found = columns(source, level, fields)
    count = row_segments(source).total if level == "token" else 0  # others have all columns
    arrays = [_filled(name, found[name], count) for name in fields]
    return [package().record_batch(arrays, names=list(fields))]


def write(run: Run, printing: Printing, stream: BinaryIO) -> None:
    """Writes the batches; those of an evaluation that stops early are no file."""
    with Sink(stream) as sink:
        schema = None
        for pieces in limited(
            run,
            printing.limit,
            lambda batch, most: (batch.slice(0, most), min(most, batch.num_rows)),
        ):
            schema = _add(sink, pieces, schema)
        if run.empty or not run.complete:
            return
        if printing.level == "batch":
            rows = totals_of(run, printing)
            listed = [{name: [value] for name, value in row.items()} for row in rows]
            _add(sink, list(map(_batch, listed)), None)
        elif schema is None:
            sink.add(_batch({name: [] for name in printing.names}))


def write_batches(batches: Sequence[Any], stream: BinaryIO) -> None:
    """Writes some batches as a file of their own."""
    with Sink(stream) as sink:
        _add(sink, batches, None)


def _add(sink: Sink, batches: Sequence[Any], schema: Any) -> Any:
    """Appends batches with the columns of the first of all; returns these."""
    for batch in batches:
        fitted = batch if schema is None else _cast(batch, schema)
        schema = fitted.schema
        sink.add(fitted)
    return schema


def _cast(batch: Any, schema: Any) -> Any:
    """A batch with the columns of the first one; what was text there is text.

    Raises:
        UsageError: where it has something of another type.
    """
    if batch.schema == schema:
        return batch
    columns = [
        values if values.type == field.type else _cast_column(field, values)
        for field, values in zip(schema, batch.columns, strict=True)
    ]
    return package().record_batch(columns, schema=schema)


def _cast_column(field: Any, values: Any) -> Any:
    pa = package()
    encoded = isinstance(field.type, pa.DictionaryType)
    wanted = field.type.value_type if encoded else field.type
    listed = values.to_pylist()
    try:
        made = pa.array(texts(listed) if wanted == pa.string() else listed, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise UsageError(
            f"--format parquet: {field.name} is {wanted} in the first rows and "
            f"{column(field.name, listed).type} later; a column has one type: "
            "choose --fields without it, or another format"
        ) from None
    return made.dictionary_encode().cast(field.type) if encoded else made


# ---- columns -----------------------------------------------------------------------------------


def _batch(named: Mapping[str, Sequence[Any]]) -> Any:
    arrays = [column(name, values) for name, values in named.items()]
    return package().record_batch(arrays, names=list(named))


def _filled(name: str, found: Column, count: int) -> Any:
    """A column with a value for each of ``count`` rows; nulls where it has none."""
    if found.values is None:
        return package().nulls(count, _kind(name))
    if name == "clip":
        codes = package().array((found.values == 1).astype(np.int32), mask=found.values == 0)
        sides = package().array(["low", "high"])
        return package().DictionaryArray.from_arrays(codes, sides)
    made = column(name, found.values)
    return made if found.owners is None else _repeated(made, found.owners.lengths)


def column(name: str, values: Sequence[Any]) -> Any:
    """A column under one of the names of fields."""
    pa = package()
    if isinstance(values, np.ndarray):
        return pa.array(values)
    if KINDS.get(name, "any") == "any":  # as the user's data have it
        return _of_any_type(name, values)
    return pa.array(values, _kind(name))


def _kind(name: str) -> Any:
    """The type of a column whose values do not say it."""
    pa = package()
    return {"text": pa.string(), "whole": pa.int64()}.get(KINDS[name], pa.float64())


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


def _repeated(values: Any, counts: I64) -> Any:
    """Each value as often as it counts."""
    pa = package()
    if pa.types.is_nested(values.type):
        each = zip(values.to_pylist(), counts.tolist(), strict=True)
        return pa.array([one for one, count in each for _ in range(count)], values.type)
    return values.dictionary_encode().take(pa.array(np.arange(len(values)).repeat(counts)))


# ---- eval --on ray -o FOLDER: rows in numbered files, which workers write ------------------------


_PACKS: Mapping[str, Callable[[Printing], Pack]] = {
    "jsonl": lambda _: joined,
    "csv": lambda wanted: partial(joined, head=CSV.head(wanted.names)),
    "parquet": lambda _: write_batches,
}
"""Format → what makes a part of its rows."""


def folder_of(printing: Printing, plan: Plan, reader: Reader) -> PartFolder:
    """The folder of the parts that are asked for.

    Raises:
        UsageError: where rows cannot go to parts, or there are some of something else.
    """
    assert printing.output is not None
    if printing.kind not in _PACKS or printing.level == "batch" or printing.limit:
        kinds = ", ".join(_PACKS)
        raise UsageError(f"parts need --format {kinds}; leave out --limit and --level batch")
    about = {
        "objective": [plan.variant, *sorted({**plan.swapped, **plan.flags}.items()), plan.batch],
        "rows": [printing.kind, printing.level, printing.names, printing.nest],
    }
    pack = _PACKS[printing.kind](printing)
    return part_folder(printing.output, printing.kind, pack, reader, about, resume=printing.resume)
