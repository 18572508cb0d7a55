"""Decoded objects → chunks: many records alike are packed at once, others read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from grpo_cli.batch import Batch
from grpo_cli.engine.chunk import Chunk, carefully
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import BatchFields, DecodedChunk, Packed, Raw, Record, headers, lay, pack
from grpo_cli.records.fields import GROUPS, Fields, read_fields
from grpo_cli.records.parse.settings import read_settings

if TYPE_CHECKING:
    from grpo_cli.records.tables.columns import Columns

_BYTES = 1 << 22
"""Text evaluated together, some 65,000 tokens of three columns: enough that numpy's overhead is
small, few enough that memory is."""
_PRINTED = 4096
"""Records whose rows are made together: a row takes some kilobytes until it is text."""

Shared = tuple[Fields, Mapping[str, Value]]
Items = Sequence[Raw | InputError]


@dataclass(slots=True)
class _Packing:
    """Records that follow each other with the same keys and hyperparameters.

    Attributes:
        raws: the records, of which the texts are kept where those say it all.
        shared: what their keys mean, and their hyperparameters.
        packed: their columns, piece by piece.
        headers: what a report shows of them beside their numbers; empty where none is wanted.
        size: about how many bytes of text they were.
        of_batches: field → value of each record's batch; empty where ``--batch`` names no field.
    """

    raws: list[Raw]
    shared: Shared
    packed: list[Packed]
    headers: list[Record]
    size: int
    of_batches: list[BatchFields] = field(default_factory=list)

    def takes(self, part: _Packing, most: int) -> bool:
        """Whether it can be evaluated together with what follows it."""
        full = self.size >= most or len(self.headers) >= _PRINTED
        return part.shared == self.shared and not full

    def join(self, part: _Packing) -> None:
        """Appends records of the same kind."""
        self.raws += part.raws
        self.packed += part.packed
        self.headers += part.headers
        self.size += part.size
        self.of_batches += part.of_batches

    def chunks(self) -> Iterator[Chunk | InputError]:
        """The records side by side; one by one where a value is out of range."""
        batch = lay(self.packed)
        if batch is None:
            yield from carefully(self.raws)
            return
        fields, settings = self.shared
        batch = with_misnamed(batch, fields)
        given = "advantages" in fields.names
        yield Chunk(self.headers, batch, settings, given, self.raws, self.of_batches)


def chunks(
    decoded: Iterable[DecodedChunk], *, with_headers: bool, together: int = _BYTES
) -> Iterator[Chunk | InputError]:
    """Packs records as they are decoded, and puts together what can be evaluated together.

    Args:
        decoded: objects in order; in the place of one that cannot be read stands its error.
        with_headers: whether a report will show the records.
        together: bytes of text from which on no more is put beside it.
    """
    waiting: _Packing | None = None
    for part in chain.from_iterable(_parts(few, with_headers=with_headers) for few in decoded):
        if waiting is not None and isinstance(part, _Packing) and waiting.takes(part, together):
            waiting.join(part)
            continue
        if waiting is not None:
            yield from waiting.chunks()
        waiting = None
        if isinstance(part, _Packing):
            waiting = part
        elif isinstance(part, Chunk):
            yield part
        else:
            yield from carefully(part)
    if waiting is not None:
        yield from waiting.chunks()


def _parts(few: DecodedChunk, *, with_headers: bool) -> Iterator[_Packing | Chunk | Items]:
    """What is alike, packed; what is not, as it is."""
    if few.columns is not None:
        yield _of_columns(few.columns, few.items, with_headers=with_headers)
        return
    known = None if few.keys is None else _known(few.keys)
    if known is not None:
        yield _packed(few, known, with_headers=with_headers)
        return
    for shared, items in groupby(few.items, _shared):
        if shared is not None:
            yield _packed(DecodedChunk(list(items)), shared, with_headers=with_headers)
        else:
            yield list(items)


def alike(few: DecodedChunk) -> Iterator[tuple[Items, Packed | None]]:
    """Objects that are records, beside their columns; None beside those to be read one by one.

    Those are the unusual ones, and those among which a value is out of range.
    """
    known = None if few.keys is None else _known(few.keys)
    runs = [(known, few.items)] if known is not None else groupby(few.items, _shared)
    for shared, some in runs:
        items: Any = list(some)
        packed = None if shared is None else pack([raw.value for raw in items])
        yield items, None if packed is None or lay([packed]) is None else packed


def _of_columns(columns: Columns, items: Items, *, with_headers: bool) -> Chunk:
    """What was read by columns; its rows are made where one of them turns out to be at fault."""
    from grpo_cli.records.tables.headers import headers  # which only tables need

    shown = headers(columns) if with_headers else []
    rows: Any = items
    batch = with_misnamed(columns.batch, columns.fields)
    return Chunk(shown, batch, columns.settings, columns.advantages_given, rows)


def with_misnamed(batch: Batch, fields: Fields) -> Batch:
    """The batch with the keys that may be columns it lacks, by their names.

    Their values are looked at where an objective needs one of them, record by record.
    """
    found = {column: each[0] for column, each in fields.misnamed.items()}
    return replace(batch, misnamed=found) if found else batch


def _packed(few: DecodedChunk, shared: Shared, *, with_headers: bool) -> _Packing | Items:
    raws: list[Raw] = few.items  # type: ignore[assignment]  # with keys in common: no error
    packed = pack([raw.value for raw in raws])
    if packed is None:
        return few.items
    shown = headers(raws, packed, shared[0].names) if with_headers else []
    for raw in raws:
        raw.drop()
    size, of_batches = sum([raw.size for raw in raws]), [raw.batch for raw in raws if raw.batch]
    return _Packing([*raws], shared, [packed], shown, size, of_batches)


def _shared(raw: Raw | InputError) -> Shared | None:
    """What records that follow each other share; None if keys or hyperparameters are invalid."""
    if isinstance(raw, InputError) or not isinstance(raw.value, dict):
        return None
    if None not in raw.value.values():
        known = _known(tuple(raw.value))
        if known is not None:
            return known
    try:
        fields = read_fields(raw.value)
        return fields, read_settings(raw.value, fields)
    except InputError:
        return None


@lru_cache(maxsize=64)
def _known(keys: tuple[str, ...]) -> Shared | None:
    """The same for records without nulls, where their keys alone say it: most records."""
    if GROUPS in keys:
        return None
    try:
        fields = read_fields(dict.fromkeys(keys, 0))
    except InputError:
        return None
    own = fields.hyperparameters or "hyperparameters" in fields.names
    return None if own else (fields, read_settings({}, fields))
