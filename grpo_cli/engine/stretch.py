"""Cuts a stream of records into stretches that can be evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from grpo_cli.errors import InputError
from grpo_cli.objective.hyperparameter import Value
from grpo_cli.records import HANDFUL, Handful, Packed, Raw, Record, headers, layout, pack
from grpo_cli.records.fields import GROUPS, Fields, read_fields
from grpo_cli.records.settings import read_settings

CHUNK_BYTES = 1 << 21
"""Text evaluated together, some 32,000 tokens of three columns: enough that numpy's overhead is
small, few enough that the arrays stay in cache."""
CHUNK_TOKENS = 16_384
CHUNK_PRINTED = 4096
"""Records whose rows are made together: a row takes some kilobytes until it is text."""

T = TypeVar("T", Raw, Record)


@dataclass(slots=True)
class Stretch:
    """Decoded records that follow each other with the same keys and hyperparameters.

    Attributes:
        raws: the records; those that were packed have no value any more, but for the first.
        packed: their columns, piece by piece; None where they are unusual or faulty.
        headers: what a report shows of them beside their numbers; empty where none is wanted.
        size: about how many bytes of text they were.
    """

    raws: list[Raw]
    packed: list[Packed] | None
    headers: list[Record]
    size: int

    @property
    def is_full(self) -> bool:
        """Whether it should be evaluated before more is added."""
        return self.size >= CHUNK_BYTES or len(self.headers) >= CHUNK_PRINTED

    def join(self, part: Stretch) -> None:
        """Appends packed records of the same kind."""
        assert self.packed is not None
        assert part.packed is not None
        self.raws += part.raws
        self.packed += part.packed
        self.headers += part.headers
        self.size += part.size


def stretches(handfuls: Iterable[Handful], *, with_headers: bool) -> Iterator[Stretch | InputError]:
    """Packs records as they are decoded, and puts together what can be evaluated together."""
    whole: Stretch | None = None
    key: object = None
    for few, own in chain.from_iterable(map(_alike, handfuls)):
        if whole is not None and (own is None or own != key or whole.is_full):
            yield whole
            whole = None
        if isinstance(few, InputError):
            yield few
            continue
        part = _packed(few, own, with_headers=with_headers)
        if part.packed is None:
            if whole is not None:
                yield whole
            whole = None
            yield part
        elif whole is None or whole.packed is None:
            whole, key = part, own
        else:
            whole.join(part)
    if whole is not None:
        yield whole


def _alike(few: Handful) -> Iterator[tuple[Any, object]]:
    """Lists of records that share what ``_key`` gives, with it; and errors, with None."""
    known = None if few.keys is None else _known(few.keys)
    if known is not None:
        yield few.items, known
        return
    for part in _cut(few.items, _key, lambda raw: raw.size, HANDFUL):
        yield part, None if isinstance(part, InputError) else _key(part[0])


def _packed(raws: list[Raw], key: object, *, with_headers: bool) -> Stretch:
    packed = None if key is None else pack([raw.value for raw in raws])
    size = sum([raw.size for raw in raws])
    if packed is None:
        return Stretch(raws, None, [], size)
    shown = headers(raws) if with_headers else []
    for raw in raws[1:]:  # the first still says what the keys mean
        if raw.text is not None:
            raw.value = None
    return Stretch(raws, [packed], shown, size)


def chunks(items: Iterable[Record | InputError]) -> Iterator[list[Record] | InputError]:
    """Checked records that follow each other in one layout."""
    return _cut(items, layout, lambda record: sum(record.widths), CHUNK_TOKENS)


def _cut(
    items: Iterable[T | InputError],
    key_of: Callable[[T], object],
    size_of: Callable[[T], int],
    most: int,
) -> Iterator[list[T] | InputError]:
    group: list[T] = []
    key: object = None
    room = 0
    for item in items:
        own = None if isinstance(item, InputError) else key_of(item)
        if group and (room <= 0 or own is None or own != key):
            yield group
            group = []
        if isinstance(item, InputError):
            yield item
            continue
        if not group:
            key, room = own, most
        group.append(item)
        room -= size_of(item)
    if group:
        yield group


def _key(raw: Raw) -> object:
    """What the records of a stretch share; None for one that nothing can be said of yet."""
    if not isinstance(raw.value, dict):
        return None
    if None not in raw.value.values():
        known = _known(tuple(raw.value))
        if known is not None:
            return known
    try:
        return shared(raw)
    except InputError:
        return None


@lru_cache(maxsize=64)
def _known(keys: tuple[str, ...]) -> tuple[Fields, Mapping[str, Value]] | None:
    """The same for records without nulls, where their keys alone say it: most records."""
    if GROUPS in keys:
        return None
    try:
        fields = read_fields(dict.fromkeys(keys, 0))
    except InputError:
        return None
    own = fields.hyperparameters or "hyperparameters" in fields.names
    return None if own else (fields, read_settings({}, fields))


def shared(raw: Raw) -> tuple[Fields, Mapping[str, Value]]:
    """What a record's keys mean, and its hyperparameters.

    Raises:
        InputError: where they are wrong.
    """
    fields = read_fields(raw.value)
    return fields, read_settings(raw.value, fields)
