"""Which rows are one group (``--group-by``, ``--group-size``), and the records made of them.

The reader cuts its blocks at the ends of groups and says in each block where they are, so that the
groups are the same whatever the size of a block, and any process can read one. For this it looks
at the key of every line, which is seen in most texts without decoding them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.choose.rows import merge
from grpo_cli.records.choose.where import Path, spelled
from grpo_cli.records.open.blocks import Block, Cut
from grpo_cli.records.record import Raw

T = TypeVar("T")


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


Items = Iterator[Raw | InputError]


def whole(source: str, groups: Iterable[Group[tuple[int, bytes]]], size: int) -> Iterator[Block]:
    """Blocks of at least ``size`` bytes that end where a group ends; lines have their numbers.

    Raises:
        InputError: where reading fails, behind the groups before, whatever the size is.
    """
    block = _Building(source)
    fault: InputError | None = None
    try:
        for group in groups:
            block.add(group)
            if block.size >= size:
                yield block.done()
    except InputError as error:
        fault = error
    if block.lines:
        yield block.done()
    if fault is not None:
        raise fault


@dataclass
class _Building:
    """A block of whole groups."""

    source: str
    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    size: int = 0

    def add(self, group: Group[tuple[int, bytes]]) -> None:
        self.cuts.append(Cut(len(group.items), group.label, group.fault))
        for number, text in group.items:
            self.numbers.append(number)
            self.lines.append(text)
            self.size += len(text) + 1

    def done(self) -> Block:
        lines, numbers, cuts = self.lines, self.numbers, self.cuts
        self.lines, self.numbers, self.cuts, self.size = [], [], [], 0
        return Block(self.source, numbers[0], lines, numbers=numbers, groups=cuts)


def apart(
    block: Block, read: Callable[[Block], list[Raw | InputError]]
) -> Iterator[Group[Raw | InputError]]:
    """The groups that a block was cut into."""
    assert block.groups is not None
    assert block.numbers is not None
    at = 0
    for size, label, fault in block.groups:
        numbers = block.numbers[at : at + size]
        part = Block(block.source, numbers[0], block.lines[at : at + size], numbers=numbers)
        yield Group(read(part), label, fault)
        at += size


def blamed(
    groups: Iterable[Group[Raw | InputError]], faults: Mapping[int, InputError]
) -> Iterator[Group[Raw | InputError]]:
    """The same groups, with what is wrong with some of them, by their numbers."""
    for number, group in enumerate(groups):
        group.fault = group.fault or faults.get(number)
        yield group


def merged(groups: Iterable[Group[Raw | InputError]], grouping: Grouping, source: str) -> Items:
    """A record of each group; in the place of one that cannot be put together stands its error."""
    for group in groups:
        try:
            if group.items or group.fault is not None:
                yield _one(group, grouping)
        except InputError as error:
            error.source = error.source or source
            yield error


def _one(group: Group[Raw | InputError], grouping: Grouping) -> Raw:
    rows = []
    for one in group.items:
        if isinstance(one, InputError):
            raise one
        rows.append(one)
    if group.fault is not None:
        raise group.fault
    for raw in rows:
        if raw.key is None:
            message = f"expected {grouping.named} to group by, found none"
            path = raw.prefix.rstrip(".")
            raise InputError(message, path=path, source=raw.source, line=raw.line)
        if raw.key != rows[0].key and grouping.by:
            message = f"records of several groups in one line, after lines of one {grouping.named}"
            raise InputError(message, source=raw.source, line=raw.line)
    return merge(rows, group.label, by_size=bool(grouping.size))
