"""Decoded objects → chunks: many records alike are packed at once, others read one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np

from grpo_cli.batch import borders
from grpo_cli.engine.chunk import Chunk, Mixed, carefully
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import BatchFields, DecodedChunk, Packed, Raw, Record, headers, lay, pack
from grpo_cli.records.fields import GROUPS, Fields, fields_of, read_fields
from grpo_cli.records.settings import ABSENT, Settings, join_settings

_BYTES = 1 << 22
"""Text evaluated together, some 65,000 tokens of three columns: enough that numpy's overhead is
small, and memory too."""
_MIXED = 4
"""As many times that where records of several settings alternate, so that each has many."""
_PRINTED = 4096
"""Records whose rows are made together: a row takes some kilobytes until it is text."""

Items = Sequence[Raw | InputError]
CommonSettings = tuple[tuple[str, Value], ...]
_Common = Callable[[Settings], tuple[list[CommonSettings], list[int]]]
MakeRecords = Callable[[Sequence[Raw], Packed], list[Record]]


@dataclass(slots=True)
class _Run:
    """Records that are evaluated together.

    Attributes:
        settings: what they have in common of their hyperparameters, as ``_in_common`` has it.
        raws: the records, which keep their values only where these cannot be made again.
        packed: their columns, piece by piece.
        headers: what a report shows of them but their numbers; empty where none is wanted.
        size: about how many bytes of text they were.
        of_batches: field → value of each record's batch; empty where ``--batch`` names no field.
    """

    settings: CommonSettings
    raws: list[Raw]
    packed: list[Packed]
    headers: list[Record]
    size: int
    of_batches: list[BatchFields]

    @property
    def key(self) -> Hashable:
        """What records that are evaluated together have in common: settings, and their fields."""
        fields = self.packed[0].fields
        names = tuple(fields.names.items()), fields.hyperparameters, fields.unknown
        return self.settings, names

    def join(self, later: _Run) -> None:
        """Appends records of the same kind."""
        self.raws += later.raws
        self.packed += later.packed
        self.headers += later.headers
        self.size += later.size
        self.of_batches += later.of_batches

    def chunk(self) -> Chunk | None:
        """The records side by side; None where a value is out of range."""
        batch, first = lay(self.packed), self.packed[0]
        given = "advantages" in first.fields.names
        if batch is None:
            return None
        each = join_settings([packed.settings for packed in self.packed])
        names = [name for name, value in self.settings if value is _VARIES]
        columns = {name: np.array(each.columns[name]) for name in names}
        varied = {name: one for name, one in columns.items() if (one != one[0]).any()}
        own = first.settings.of_record(0), given, self.raws, self.of_batches, varied
        return Chunk(self.headers, batch, *own)


def chunks(
    decoded: Iterable[DecodedChunk],
    *,
    make_records: MakeRecords | None = headers,
    settings: Collection[str] | None = None,
    uniform: Collection[str] | None = None,
    together: int = _BYTES,
    in_order: bool = True,
) -> Iterator[Any]:
    """Packs records as they are decoded, and puts together what can be evaluated together.

    It yields a ``Chunk``, or an ``InputError``; also a ``Mixed`` where the order does not matter.

    Args:
        decoded: objects in order; an unreadable one is replaced by its error.
        make_records: what is kept of them for a report; None for nothing.
        settings: the hyperparameters that are read of a chunk's records; None for all of them.
        uniform: those of them in which the records have to agree; None for all.
        together: bytes of text of equal settings from which on no more is added to a chunk.
        in_order: whether the records of a chunk have to follow each other.
    """
    runs: dict[Hashable, _Run] = {}
    raws: list[Raw] = []
    size = largest = printed = 0
    common = partial(_in_common, settings, uniform)
    parts = (_parts(chunk, common, make_records) for chunk in decoded)
    for part in chain.from_iterable(parts):
        key = part.key if isinstance(part, _Run) else None
        run = runs.get(key)
        full = largest >= together or size >= _MIXED * together or printed >= _PRINTED
        if full or not isinstance(part, _Run) or (in_order and run is None):
            yield from _laid(runs, raws)
            runs, raws, size, largest, printed, run = {}, [], 0, 0, 0, None
        if isinstance(part, _Run):
            raws += part.raws
            size, printed = size + part.size, printed + len(part.headers)
            if run is None:
                runs[key] = run = part
            else:
                run.join(part)
            largest = max(largest, run.size)
        else:
            yield from carefully(part)
    yield from _laid(runs, raws)


def _laid(runs: Mapping[Hashable, _Run], raws: list[Raw]) -> Iterator[Chunk | Mixed | InputError]:
    """The records of runs side by side; one by one where a value is out of range."""
    found = [chunk for run in runs.values() if (chunk := run.chunk()) is not None]
    if len(found) < len(runs):
        yield from carefully(raws)
    elif len(found) > 1:
        yield Mixed(found, raws)
    else:
        yield from found


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
    chunk: DecodedChunk, common: _Common, make_records: MakeRecords | None
) -> Iterator[_Run | Items]:
    """Records that are alike, packed; others as they are."""
    for items, packed in packed_runs(chunk):
        if packed is None:
            yield items
            continue
        raws: list[Raw] = items  # type: ignore[assignment]  # what is packed is no error
        shown = [] if make_records is None else make_records(raws, packed)
        keys, ends = common(packed.settings)
        pieces = zip(keys, [0, *ends], ends, packed.cut(ends), strict=False)
        for key, start, end, kept in pieces:
            some = raws[start:end]
            for raw in some:
                raw.drop()
            of_batches = [raw.batch for raw in some if raw.batch]
            size = sum([raw.size for raw in some])
            yield _Run(key, some, [kept], shown[start:end], size, of_batches)


_VARIES = "varies"
"""Replaces a number other than 0 that may differ between records: with 0, a term is left out."""


def _in_common(
    read: Collection[str] | None, uniform: Collection[str] | None, given: Settings
) -> tuple[list[CommonSettings], list[int]]:
    """The hyperparameters in which records that are evaluated together agree, and where each ends.

    Those of neighbours differ.
    """
    columns = {name: one for name, one in given.columns.items() if read is None or name in read}
    for name in columns.keys() - uniform if uniform is not None else ():
        columns[name] = [
            _VARIES if one and type(one) in (float, int) else one for one in columns[name]
        ]
    rows = [*zip(*columns.values(), strict=True)] or [()] * given.count
    ends = borders(rows)
    each = [zip(columns, rows[start], strict=True) for start in ends[:-1]]
    keys = [tuple([pair for pair in pairs if pair[1] is not ABSENT]) for pairs in each]
    return keys, ends[1:]
