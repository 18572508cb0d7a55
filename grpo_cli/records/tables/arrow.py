"""Parquet and Arrow files; needs pyarrow, the extra ``parquet``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.record import Raw
from grpo_cli.records.tables import cuts
from grpo_cli.records.tables.cells import rows
from grpo_cli.records.tables.files import Rows, check_end, damage, mapped, package, parquet_file

_ROWS = 256
_TOKENS = 1 << 16
"""Numbers of a column that are read at once: few enough to stay in cache from stage to stage."""
_MOST_ROWS = 1 << 14


def slices(
    source: Source, kind: str, size: int, *, grouping: Grouping | None, whole: bool
) -> Iterator[Rows]:
    """The row groups of a Parquet file, the batches of an Arrow file.

    Args:
        source: the file.
        kind: how it is read.
        size: how many bytes it has.
        grouping: what rows are put together, where that is all that happens to them.
        whole: whether all of it is one piece, where it cannot be cut between groups.

    Raises:
        InputError: where it is damaged.
    """
    pa = package()
    check_end(source.name, source.path, kind)
    with damage(pa, source.name):
        counts = _counts(pa, source.path, kind)
    if not sum(counts):
        raise InputError("no records: the table has no rows", source=source.name)
    if grouping is not None and kind == "parquet":
        pieces = cuts.between_groups(pa, source, size, grouping)
        if pieces is not None:
            yield from pieces
            return
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
        with parquet_file(pa, path) as file:
            meta = file.metadata
            return [meta.row_group(part).num_rows for part in range(meta.num_row_groups)]
    return [batch.num_rows for batch in _batches(pa, path, kind, None)]


def raws(piece: Rows) -> Iterator[Raw | InputError]:
    """The rows of a part of a file."""
    pa = package()
    first = piece.first - (piece.cut.skip if piece.cut is not None else 0)
    with damage(pa, piece.source):
        for batch in _batches(pa, piece.path, piece.kind, piece.parts):
            if piece.kind != "parquet":
                batch.validate(full=True)  # what an Arrow file says of itself is taken as it is
            yield from rows(pa, batch, piece.source, first)
            first += batch.num_rows


def _batches(pa: Any, path: str, kind: str, parts: Sequence[int] | None) -> Iterator[Any]:
    if kind == "parquet":
        with parquet_file(pa, path) as file:
            yield from file.iter_batches(_ROWS, row_groups=parts)
        return
    with mapped(pa, path) as stream:
        if kind == "arrow-stream":
            yield from pa.ipc.open_stream(stream)
            return
        file = pa.ipc.open_file(stream)
        for number in range(file.num_record_batches) if parts is None else parts:
            yield file.get_batch(number)


def schema_of(pa: Any, piece: Rows) -> Any:
    """The columns of a file."""
    if piece.kind == "parquet":
        with parquet_file(pa, piece.path) as file:
            return file.schema_arrow
    with mapped(pa, piece.path) as stream:
        open_file = pa.ipc.open_stream if piece.kind == "arrow-stream" else pa.ipc.open_file
        return open_file(stream).schema


def batches(pa: Any, piece: Rows, names: list[str] | None) -> Iterator[Any]:
    """Some columns of a piece, a handful of numbers at once.

    Args:
        pa: pyarrow.
        piece: which rows.
        names: the columns; None for all of them.
    """
    if piece.kind == "parquet":
        with parquet_file(pa, piece.path) as file:
            parts = list(piece.parts or range(file.metadata.num_row_groups))
            rows_at_once = _rows_at_once(file.metadata, parts)
            yield from file.iter_batches(
                rows_at_once, row_groups=parts, columns=names, use_threads=False
            )
        return
    for batch in _batches(pa, piece.path, piece.kind, piece.parts):
        batch.validate(full=True)
        kept = batch if names is None else batch.select(names)
        step = max(1, min(_MOST_ROWS, _ROWS * _TOKENS * 32 // max(1, batch.nbytes)))
        yield from (kept.slice(at, step) for at in range(0, batch.num_rows, step))


def first_row(pa: Any, piece: Rows) -> Any:
    """The first row of a piece that begins where its file does."""
    if piece.kind == "parquet":
        with parquet_file(pa, piece.path) as file:
            return next(file.iter_batches(1, row_groups=[0], use_threads=False))
    return next(_batches(pa, piece.path, piece.kind, piece.parts)).slice(0, 1)


def _rows_at_once(meta: Any, parts: Sequence[int]) -> int:
    groups = [meta.row_group(part) for part in parts]
    count = sum(group.num_rows for group in groups)
    numbers = max(
        sum(group.column(at).num_values for group in groups) for at in range(meta.num_columns)
    )
    return max(1, min(_MOST_ROWS, _TOKENS * count // max(1, numbers)))
