"""Cuts a stream of records into stretches that can be evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from grpo_cli.errors import InputError
from grpo_cli.objective.hyperparameters import Value
from grpo_cli.records import Raw, Record, layout
from grpo_cli.records.fields import Fields, read_fields
from grpo_cli.records.settings import read_settings

CHUNK_BYTES = 1 << 20
"""Text evaluated together, some 16,000 tokens of three columns: enough that numpy's overhead is
small, few enough that the arrays stay in cache."""
CHUNK_TOKENS = 16_384

T = TypeVar("T", Raw, Record)


def stretches(items: Iterable[Raw | InputError]) -> Iterator[list[Raw] | InputError]:
    """Decoded records that follow each other with the same keys and hyperparameters."""
    return _cut(items, _key, lambda raw: raw.size, CHUNK_BYTES)


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
    try:
        return shared(raw)
    except InputError:
        return None


def shared(raw: Raw) -> tuple[Fields, Mapping[str, Value]]:
    """What a record's keys mean, and its hyperparameters.

    Raises:
        InputError: where they are wrong.
    """
    fields = read_fields(raw.value)
    return fields, read_settings(raw.value, fields)
