"""Decoded objects in chunks: so many as are looked at and packed at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_cli.errors import InputError
from grpo_cli.records.record import DROPPED, Raw

if TYPE_CHECKING:
    from grpo_cli.records.fast import Packed
    from grpo_cli.records.tables.columns import Columns

CHUNK_BYTES = 1 << 17
"""Bytes of text: so few objects that they stay in cache until they are packed, and dropped."""


class DecodedChunk(NamedTuple):
    """Records that follow each other.

    Attributes:
        items: as decoded; in the place of one that cannot be read stands its error.
        keys: the keys that each of them has, in this order and with no null; None where they
            differ, or were not compared.
        columns: their numbers, where those were read by columns; then ``items`` makes each of
            its rows when it is asked for it, and has only what an evaluation needs.
        packed: the same, packed as they were decoded; None where they were not.
        shown: what those that were packed say beside numbers by token, by their keys.
    """

    items: Sequence[Raw | InputError]
    keys: tuple[str, ...] | None = None
    columns: Columns | None = None
    packed: Packed | None = None
    shown: Mapping[str, Sequence[Any]] | None = None

    def said(self, at: int) -> dict[str, Any]:
        """What one of the records that were packed says beside numbers by token."""
        return {key: each[at] for key, each in (self.shown or {}).items()}


class RawLines(Sequence[Raw]):
    """The records of lines, made when they are asked for: most are packed, and never looked at.

    Args:
        source: the file as the user named it.
        texts, numbers: the lines, and their 1-based numbers.
        values: what they were decoded to; None: each is decoded when it is asked for.
    """

    __slots__ = ("_numbers", "_source", "_texts", "_values")

    def __init__(
        self, source: str, texts: Sequence[bytes], numbers: Sequence[int], values: list[Any] | None
    ) -> None:
        self._source, self._texts, self._numbers = source, texts, numbers
        self._values = values

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(map(len, self._texts))

    @property
    def values(self) -> list[Any]:
        """What the lines were decoded to."""
        return [raw.value for raw in self] if self._values is None else self._values

    def drop(self) -> None:
        """Keeps the text alone."""
        self._values = None

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[Raw]:
        return map(self._raw, range(len(self._texts)))

    def __getitem__(self, at: Any) -> Any:
        places = range(len(self._texts))[at]
        return list(map(self._raw, places)) if isinstance(places, range) else self._raw(places)

    def _raw(self, at: int) -> Raw:
        text = self._texts[at]
        value = DROPPED if self._values is None else self._values[at]
        return Raw(value, self._source, self._numbers[at], "", len(text), text)


class Joined(Sequence[Raw]):
    """Records of several chunks, one behind the other."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Sequence[Raw]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Raw]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, at: Any) -> Any:
        return list(self)[at]


def in_chunks(items: Iterable[Raw | InputError]) -> Iterator[DecodedChunk]:
    """Puts objects together as they come."""
    few: list[Raw | InputError] = []
    room = CHUNK_BYTES
    for item in items:
        few.append(item)
        room -= item.size if isinstance(item, Raw) else 0
        if room <= 0:
            yield DecodedChunk(few)
            few, room = [], CHUNK_BYTES
    if few:
        yield DecodedChunk(few)


def one_by_one(decoded: Iterable[DecodedChunk]) -> Iterator[Raw | InputError]:
    """The same one by one."""
    return chain.from_iterable(few.items for few in decoded)


def keys_in_common(values: Sequence[Any]) -> tuple[str, ...] | None:
    """The keys of objects, where they are the same, in the same order, and none is null."""
    if set(map(type, values)) != {dict}:
        return None
    kinds = set(map(tuple, values))
    if len(kinds) > 1 or None in chain.from_iterable(map(dict.values, values)):
        return None
    return kinds.pop()
