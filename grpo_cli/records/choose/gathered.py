"""Groups of rows: from lines to blocks of whole groups, and from those to records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from grpo_cli.errors import InputError
from grpo_cli.records.choose.grouping import Group, Grouping
from grpo_cli.records.choose.rows import merge
from grpo_cli.records.open.blocks import Block, Cut
from grpo_cli.records.record import Raw

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
