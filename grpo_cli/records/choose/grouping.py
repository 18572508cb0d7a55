"""Which rows are one group: ``--group-by FIELD`` or ``--group-size N``.

The reader cuts its blocks at the ends of groups and says in each block where they are, so that the
groups are the same whatever the size of a block, and any process can read one. For this it looks
at the key of every line, which is seen in most texts without decoding them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.choose.paths import Path, spelled

T = TypeVar("T")
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY


class Grouping(NamedTuple):
    """How rows go together.

    Attributes:
        by: the fields that are equal in a group; empty where ``size`` says it.
        size: how many rows a group has; 0 where ``by`` says it.
        anywhere: whether the rows of a group may stand anywhere, at the price of memory.
    """

    by: tuple[Path, ...] = ()
    size: int = 0
    anywhere: bool = False

    @property
    def named(self) -> str:
        """The fields, for messages."""
        return ",".join(map(spelled, self.by))


@dataclass(slots=True)
class Group(Generic[T]):
    """Consecutive rows that are one group.

    Attributes:
        items: the rows.
        label: what the group is called, where it has a name.
        fault: why it cannot be one.
    """

    items: list[T]
    label: object = None
    fault: InputError | None = None


Key = Any
KeyOf = Callable[[T], Key]


class Unknown(Exception):  # noqa: N818 - the row is an error already, which is told elsewhere
    """A row without a key."""


def grouped(
    items: Iterable[tuple[int | None, T]], key_of: KeyOf[T], grouping: Grouping
) -> Iterator[Group[T]]:
    """Cuts rows into groups.

    Args:
        items: the rows of one file, each with its line.
        key_of: a row's key, which can be hashed; raises ``Unknown`` for one that has none, which
            is left in the group that it stands in, for whoever reads it to say what is wrong.
        grouping: how they go together.
    """
    if grouping.size:
        return _by_size(items, grouping.size)
    return _anywhere(items, key_of) if grouping.anywhere else _by_key(items, key_of, grouping)


def _by_size(items: Iterable[tuple[int | None, T]], size: int) -> Iterator[Group[T]]:
    rows: list[T] = []
    line: int | None = None
    for number, item in items:
        line = line if rows else number
        rows.append(item)
        if len(rows) == size:
            yield Group(rows)
            rows = []
    if rows:
        wanted = f"a multiple of {size} rows (--group-size), got {len(rows)} in the last group"
        yield Group(rows, None, InputError(f"expected {wanted}", line=line))


def _by_key(
    items: Iterable[tuple[int | None, T]], key_of: KeyOf[T], grouping: Grouping
) -> Iterator[Group[T]]:
    seen: dict[Key, int | None] = {}
    group: Group[T] | None = None
    current: Key = None
    for line, item in items:
        try:
            key = key_of(item)
        except Unknown:
            key = current
        if group is not None and key == current:
            group.items.append(item)
            continue
        if group is not None:
            yield group
        group, current = Group([item], _label(key)), key
        if key in seen:
            group.fault = again(key, line, seen[key], grouping)
        seen.setdefault(key, line)
    if group is not None:
        yield group


def again(key: Key, line: int | None, before: int | None, grouping: Grouping) -> InputError:
    """What is wrong with a group whose key was there before."""
    name, shown = grouping.named, orjson.dumps(_label(key), default=str).decode()
    place = f"line {before} on" if before is not None else "before"
    message = f"the group {name} = {shown} was there from {place} and comes back here"
    return InputError(f"{message}; --group-anywhere puts them together", line=line)


def _anywhere(items: Iterable[tuple[int | None, T]], key_of: KeyOf[T]) -> Iterator[Group[T]]:
    groups: dict[Key, Group[T]] = {}
    current: Key = None
    for _, item in items:
        with suppress(Unknown):
            current = key_of(item)
        groups.setdefault(current, Group([], _label(current))).items.append(item)
    return iter(groups.values())


def _label(key: Key) -> object:
    """What a key is called: its value, or with several fields ``120/3``; None for a long one."""
    if not isinstance(key, tuple):
        return key
    if len(key) == 1:
        return None if isinstance(key[0], bytes) else key[0]
    return "/".join("…" if isinstance(one, bytes) else str(one) for one in key)


def hashable(value: Any) -> Key:
    """A field's value as a part of a key.

    Raises:
        InputError: for one that is nested too deeply.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)  # which JSON can be written of
    if not isinstance(value, list | dict | np.ndarray):
        return value
    try:
        return orjson.dumps(value, default=str, option=_OPTIONS)
    except orjson.JSONEncodeError:
        raise InputError("expected a field to group by, got one nested too deeply") from None
