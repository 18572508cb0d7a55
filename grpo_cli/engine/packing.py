"""Decoded objects → chunks: many records alike are packed at once, others read one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from grpo_cli.engine.chunk import Chunk, carefully
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import BatchFields, DecodedChunk, Packed, Raw, Record, headers, lay, pack
from grpo_cli.records.fields import GROUPS, Fields, fields_of, read_fields
from grpo_cli.records.record import Columns

_BYTES = 1 << 22
"""Text evaluated together, some 65,000 tokens of three columns: enough that numpy's overhead is
small, few enough that memory is."""
_PRINTED = 4096
"""Records whose rows are made together: a row takes some kilobytes until it is text."""

Items = Sequence[Raw | InputError]


@dataclass(slots=True)
class _Run:
    """Records that follow each other and are evaluated together.

    Attributes:
        key: what their keys mean, and the hyperparameters that they have to agree in.
        raws: the records, of which the texts are kept where those say it all.
        packed: their columns, piece by piece.
        headers: what a report shows of them but their numbers; empty where none is wanted.
        size: about how many bytes of text they were.
        of_batches: field → value of each record's batch; empty where ``--batch`` names no field.
    """

    key: tuple[Fields, Mapping[str, Value]]
    raws: list[Raw]
    packed: list[Packed]
    headers: list[Record]
    size: int
    of_batches: list[BatchFields]

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Value],
        raws: list[Raw],
        packed: Packed,
        shown: list[Record],
    ) -> _Run:
        """Records that agree in some hyperparameters; their texts alone are kept from here on."""
        for raw in raws:
            raw.drop()
        of_batches = [raw.batch for raw in raws if raw.batch]
        size = sum([raw.size for raw in raws])
        return cls((packed.fields, settings), raws, [packed], shown, size, of_batches)

    def takes(self, later: _Run, most: int) -> bool:
        """Whether it can be evaluated together with what follows it."""
        full = self.size >= most or len(self.headers) >= _PRINTED
        return not full and self.key == later.key

    def join(self, later: _Run) -> None:
        """Appends records of the same kind."""
        self.raws += later.raws
        self.packed += later.packed
        self.headers += later.headers
        self.size += later.size
        self.of_batches += later.of_batches

    def chunks(self) -> Iterator[Chunk | InputError]:
        """The records side by side; one by one where a value is out of range."""
        batch, first = lay(self.packed), self.packed[0]
        if batch is None:
            yield from carefully(self.raws)
            return
        given = "advantages" in first.fields.names
        yield Chunk(self.headers, batch, first.settings[0], given, self.raws, self.of_batches)


def chunks(
    decoded: Iterable[DecodedChunk],
    *,
    with_headers: bool,
    settings: Collection[str] | None = None,
    together: int = _BYTES,
) -> Iterator[Chunk | InputError]:
    """Packs records as they are decoded, and puts together what can be evaluated together.

    Args:
        decoded: objects in order; in the place of one that cannot be read stands its error.
        with_headers: whether a report will show the records.
        settings: the hyperparameters that are read of a chunk's records, so that they have to agree
            in these; None for all of them.
        together: bytes of text from which on no more is added to a chunk.
    """
    waiting: _Run | None = None
    parts = (_parts(chunk, settings, with_headers=with_headers) for chunk in decoded)
    for part in chain.from_iterable(parts):
        if waiting is not None and isinstance(part, _Run) and waiting.takes(part, together):
            waiting.join(part)
            continue
        if waiting is not None:
            yield from waiting.chunks()
        waiting = None
        if isinstance(part, _Run):
            waiting = part
        elif isinstance(part, Chunk):
            yield part
        else:
            yield from carefully(part)
    if waiting is not None:
        yield from waiting.chunks()


def alike(chunk: DecodedChunk) -> Iterator[tuple[Items, Packed | None]]:
    """Objects that are records, with their columns; None with those to be read one by one.

    Those are the unusual ones, and those among which a value is out of range.
    """
    for items, packed in packed_runs(chunk):
        yield items, None if packed is None or lay([packed]) is None else packed


def packed_runs(chunk: DecodedChunk) -> Iterator[tuple[Items, Packed | None]]:
    """Runs of objects with the same fields, and their columns; None where they are unusual."""
    if chunk.keys is not None and GROUPS not in chunk.keys:
        runs: Iterable[tuple[Fields | None, Iterable[Any]]] = [(fields_of(chunk.keys), chunk.items)]
    else:
        runs = groupby(chunk.items, _fields)
    for fields, some in runs:
        items: list[Any] = list(some)
        yield items, None if fields is None else pack([raw.value for raw in items])


def _fields(raw: Raw | InputError) -> Fields | None:
    """The fields of an object; None where it is no record, or its keys contradict each other."""
    if isinstance(raw, InputError) or not isinstance(raw.value, dict):
        return None
    try:
        return read_fields(raw.value)
    except InputError:
        return None


def _parts(
    chunk: DecodedChunk, settings: Collection[str] | None, *, with_headers: bool
) -> Iterator[_Run | Chunk | Items]:
    """Records that are alike, packed; others as they are."""
    if chunk.columns is not None:
        yield _of_columns(chunk.columns, chunk.items, with_headers=with_headers)
        return
    for items, packed in packed_runs(chunk):
        if packed is None:
            yield items
            continue
        raws: list[Raw] = items  # type: ignore[assignment]  # what is packed is no error
        shown = headers(raws, packed) if with_headers else []
        begin = 0
        for own, some in groupby(packed.settings, lambda one: _read(one, settings)):
            part = slice(begin, begin + len([*some]))
            whole = part == slice(0, len(raws))
            kept = packed if whole else packed.take(part)
            yield _Run.of(own, raws[part], kept, shown[part])
            begin = part.stop


def _read(given: Mapping[str, Value], names: Collection[str] | None) -> Mapping[str, Value]:
    """The hyperparameters of a record that are read."""
    if names is None or not given:
        return given
    return {name: value for name, value in given.items() if name in names}


def _of_columns(columns: Columns, items: Items, *, with_headers: bool) -> Chunk:
    """A chunk of a table's columns; rows are made only where one of them turns out to be bad."""
    shown = columns.headers() if with_headers else []
    rows: Any = items
    return Chunk(shown, columns.batch, columns.settings, columns.advantages_given, rows)
