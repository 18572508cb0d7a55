"""Decoded objects in chunks: so many as are looked at and packed at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_cli.errors import InputError
from grpo_cli.records.record import Raw

if TYPE_CHECKING:
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
    """

    items: Sequence[Raw | InputError]
    keys: tuple[str, ...] | None = None
    columns: Columns | None = None


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
