"""The ``parquet`` format: a file with a column for each field, written as rows are computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO

from grpo_cli.commands.eval.printing import Printing
from grpo_cli.commands.eval.run import Run, limited, totals_of
from grpo_cli.engine.evaluation import Encode
from grpo_cli.engine.rows.tables import batch_of, column, none_of, row_of, texts
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records.tables.files import package
from grpo_cli.records.tables.sink import Sink


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


def write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    """Writes the batches; those of an evaluation that stops early are no file."""
    with Sink(stream) as sink:
        schema = None
        for pieces in limited(run, printing, _first_rows):
            schema = _add(sink, pieces, schema)
        if run.empty or not run.complete:
            return
        if printing.level == "batch":
            _add(sink, [row_of(row) for row in totals_of(run, printing, variant)], None)
        elif schema is None:
            sink.add(none_of(printing.names))


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


def _first_rows(batch: Any, most: int) -> tuple[Any, int]:
    return batch.slice(0, most), min(most, batch.num_rows)


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
