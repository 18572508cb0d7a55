"""Which rows are one group (``--group-by``, ``--group-size``), and the records made of them.

The reader cuts its blocks at the ends of groups and says in each block where they are, so that the
groups are the same whatever the size of a block, and any process can read one. For this it looks
at the key of every line, which is seen in most texts without decoding them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import getitem
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import orjson

from grpo_cli.errors import InputError, UsageError, did_you_mean, nearest
from grpo_cli.records.choose.rows import (
    merge,
    of_two_steps,
    responses_of,
    spelled_in_file,
    step_field,
)
from grpo_cli.records.choose.where import Missing, Path, hashable, look_up, read_path, spelled
from grpo_cli.records.fields import canonical_name
from grpo_cli.records.formats.texts import NoLogProbsError, Signal
from grpo_cli.records.open.blocks import Block, Cut
from grpo_cli.records.places import got
from grpo_cli.records.record import BatchFields, DecodedChunk, MicroBatch, Raw, only_element
from grpo_cli.records.unread import STEP_FIELDS

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


def read_grouping(
    by: Sequence[str], size: int | None, *, anywhere: bool = False
) -> Grouping | None:
    """How rows go together, as ``--group-by``, ``--group-size`` and ``--group-anywhere`` say.

    Raises:
        UsageError: for flags that contradict each other, and what is no field.
    """
    if by and size is not None:
        raise UsageError("--group-by contradicts --group-size; keep one")
    if anywhere and not by:
        raise UsageError("--group-anywhere only works with --group-by")
    if size is not None:
        return Grouping(size=size)
    names = [name.strip() for one in by for name in one.split(",")]
    fields = tuple(read_path(name, "--group-by") for name in names)
    return Grouping(fields, anywhere=anywhere) if by else None


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
Items = Iterator[Raw | InputError]
RowGroups = Iterator[Group[Raw | InputError]]


def group_rows(
    items: Iterable[tuple[int | None, T]], key_of: KeyOf[T], grouping: Grouping
) -> Iterator[Group[T]]:
    """Cuts rows into groups.

    Args:
        key_of: a row's key, which can be hashed; None for one that has none, which stays in the
            group before it until it is read, which says what is wrong with it.
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
        wanted = f"{size} rows in each group (--group-size), got {len(rows)} in the last"
        yield Group(rows, None, InputError(f"expected {wanted}", line=line))


def _by_key(
    items: Iterable[tuple[int | None, T]], key_of: KeyOf[T], grouping: Grouping
) -> Iterator[Group[T]]:
    seen: dict[Key, int | None] = {}
    group: Group[T] | None = None
    current: Key = None
    for line, item in items:
        key = key_of(item)
        key = current if key is None else key
        if group is not None and key == current:
            group.items.append(item)
            continue
        if group is not None:
            yield group
        group, current = Group([item], _label(key)), key
        if key in seen:
            shown = orjson.dumps(_label(key), default=str).decode()
            place = "earlier" if seen[key] is None else f"on line {seen[key]}"
            group.fault = InputError(
                f"the group {grouping.named} = {shown} is not contiguous: it began {place} and "
                "continues here",
                line=line,
            )
        seen.setdefault(key, line)
    if group is not None:
        yield group


def _anywhere(items: Iterable[tuple[int | None, T]], key_of: KeyOf[T]) -> Iterator[Group[T]]:
    groups: dict[Key, Group[T]] = {}
    current: Key = None
    for _, item in items:
        key = key_of(item)
        current = current if key is None else key
        groups.setdefault(current, Group([], _label(current))).items.append(item)
    return iter(groups.values())


def _label(key: Key) -> object:
    """The name of a key: its value, or with several fields ``120/3``; None for a long one."""
    if not isinstance(key, tuple):
        return key
    if len(key) == 1:
        return None if isinstance(key[0], bytes) else key[0]
    return "/".join("…" if isinstance(one, bytes) else str(one) for one in key)


def cut_between_groups(
    source: str, groups: Iterable[Group[tuple[int, bytes]]], size: int
) -> Iterator[Block]:
    """Blocks of at least ``size`` bytes that end where a group ends; lines have their numbers.

    Raises:
        InputError: where reading fails, after the groups before, whatever the size is.
    """
    waiting: list[Group[tuple[int, bytes]]] = []
    room, fault = size, None
    try:
        for group in groups:
            waiting.append(group)
            room -= sum([len(text) + 1 for _, text in group.items])
            if room <= 0:
                yield _block(source, waiting)
                waiting, room = [], size
    except InputError as error:
        fault = error
    if waiting:
        yield _block(source, waiting)
    if fault is not None:
        raise fault


def _block(source: str, groups: Sequence[Group[tuple[int, bytes]]]) -> Block:
    rows = [row for group in groups for row in group.items]
    numbers, lines = [number for number, _ in rows], [text for _, text in rows]
    cuts = [Cut(len(group.items), group.label, group.fault) for group in groups]
    return Block(source, numbers[0], lines, numbers=numbers, groups=cuts)


def split_block(block: Block, read: Callable[[Block], Items]) -> RowGroups:
    """The groups that a block was cut into."""
    assert block.groups is not None
    assert block.numbers is not None
    at = 0
    for size, label, fault in block.groups:
        numbers = block.numbers[at : at + size]
        part = Block(block.source, numbers[0], block.lines[at : at + size], numbers=numbers)
        yield Group([*read(part)], label, fault)
        at += size


def merge_groups(
    groups: Iterable[Group[Raw | InputError]], grouping: Grouping, source: str
) -> Items:
    """A record of each group; an error in the place of each that cannot be put together."""
    for group in groups:
        try:
            rows = (one for one in group.items if isinstance(one, Raw))
            if grouping.size and any(responses_of(row) > 1 for row in rows):
                yield from (_sized(one, grouping.size) for one in group.items)
            elif group.items or group.fault is not None:
                yield _merge_group(group, grouping)
        except InputError as error:
            error.source = error.source or source
            yield error


def _sized(row: Raw | InputError, size: int) -> Raw | InputError:
    """A record of several responses, which says how many of them are one group."""
    if isinstance(row, InputError):
        return row
    again = None if row.again is None else lambda: row.value | {"group_size": size}
    return replace(row, kept=row.value | {"group_size": size}, again=again)


def _merge_group(group: Group[Raw | InputError], grouping: Grouping) -> Raw:
    rows, texts = [], [one for one in group.items if isinstance(one, NoLogProbsError)]
    if texts and len(texts) == len(group.items):
        raise _without_log_probs(texts, group, grouping)
    for one in group.items:
        if isinstance(one, InputError):
            raise one
        rows.append(one)
    if group.fault is not None:
        if not rows:  # a line of a header or of a step without rollouts holds none
            raise group.fault
        field = step_field(rows[0])
        step = None if field in (None, *grouping.by) else spelled_in_file(rows[0], field or ())
        raise _with_hint(group.fault, step, grouping)
    for raw in rows:
        if raw.key is None:
            message = f"there is no {grouping.named} to group by{_other_fields(raw, grouping)}"
            path = raw.prefix.rstrip(".")
            raise InputError(message, path=path, source=raw.source, line=raw.line)
        if raw.key != rows[0].key and grouping.by:
            message = (
                f"this line has several values of {grouping.named}, but earlier lines have one each"
            )
            raise InputError(message, source=raw.source, line=raw.line)
    if len(rows) == 1:
        _refuse_ids_of_responses(rows[0], grouping)
    return merge(rows, group.label, grouping.named)


def _without_log_probs(
    rows: Sequence[NoLogProbsError], group: Group[Raw | InputError], grouping: Grouping
) -> NoLogProbsError:
    """The error in the place of a group whose rows have rewards and no log-probs: it has all.

    Raises:
        InputError: for rows of several steps, and a group that comes back.
    """
    first, signals = rows[0], [one.signal for one in rows]
    step, key = signals[0].step, signals[0].key
    if group.fault is not None:
        known = step is not None and (key,) not in grouping.by
        raise _with_hint(group.fault, key if known else None, grouping)
    for row in rows:
        if row.signal.step != step:
            place = f"line {first.line}"
            message = of_two_steps(key, row.signal.step, step, place, grouping.named)
            raise InputError(message, path=key, source=row.source, line=row.line)
    first.signal = Signal(
        [reward for one in signals for reward in one.rewards],
        [length for one in signals for length in one.lengths],
        group.label,
        step,
        key,
    )
    return first


def _with_hint(fault: InputError, step: str | None, grouping: Grouping) -> InputError:
    """A group that comes back, with what reads it: a prompt comes back at other steps.

    Groups of a size have a fault of another kind.
    """
    if not grouping.by:
        return fault
    hint = "--group-anywhere joins them"
    if step is not None:
        by = f"{step},{grouping.named}"
        hint = f"--group-by {by} separates steps, --group-anywhere joins rows of one step"
    return InputError(f"{fault.message}; {hint}", line=fault.line)


def _refuse_ids_of_responses(raw: Raw, grouping: Grouping) -> None:
    """Refuses a field with a value for each response of a record that is not read as its groups.

    Raises:
        InputError: with the ``--map`` that reads it so; all of them would be one group otherwise.
    """
    names = [spelled(field) for field in grouping.by]
    if any(canonical_name(name) == "group_ids" for name in names):
        return
    for name, field in zip(names, grouping.by, strict=True):
        with suppress(Missing):  # "file" need not be a field
            values = look_up(raw.value, field)
            several = isinstance(values, list) and len({*map(hashable, values)}) > 1
            if several and len(values) == responses_of(raw):
                raise InputError(
                    f"one record has {len(values)} values, one for each response, and --group-by "
                    f"joins records: --map group_ids={name} reads them as groups",
                    path=raw.prefix + name,
                    source=raw.source,
                    line=raw.line,
                )


def _other_fields(raw: Raw, grouping: Grouping) -> str:
    """The field that may have been meant, else those that a row could be grouped by."""
    value = raw.value if isinstance(raw.value, dict) else {}
    texts = {  # columns of one text, as that of a table's row has it
        name
        for name, one in value.items()
        if isinstance(one, list) and len(one) == 1 and isinstance(one[0], str)
    }
    known = [n for n, one in value.items() if isinstance(one, str | int) or n in texts]
    if near := nearest(grouping.named, known):
        return f"; did you mean --group-by {near}?"
    return f" (this row has {', '.join(known)})" if known else ""


RANK_FIELDS = ("dp_rank", "data_parallel_rank", "rank", "global_rank", "process_index")
"""Fields that say which data-parallel rank trained on a record, the first that is there.

Megatron and verl call it dp_rank; ``rank``, as prime-rl's token export has it, and accelerate's
process_index are the same without tensor and pipeline parallelism.
"""

MICRO_BATCH_FIELDS = (
    *("microbatch", "micro_batch", "micro_step"),
    *("microbatch_idx", "micro_batch_idx", "microbatch_id", "micro_batch_id", "micro_batch_index"),
)
"""Fields that say which micro-batch of its rank and step a record is of, the first that is there.

``microbatch`` is what grpo's hook for TRL writes, ``micro_step`` prime-rl's token export,
``micro_batch_idx`` is verl's name in its engines.
"""

FILE = "file"
"""Marks the file that a record is in, where the record has no field of this name."""


def batch_fields(batch: str) -> tuple[Path, ...]:
    """Returns the fields that ``--batch`` names; none for ``input`` and ``record``.

    Raises:
        UsageError: for what is no field.
    """
    if batch in ("input", "record"):
        return ()
    return tuple(read_path(one.strip(), "--batch") for one in batch.split(","))


def batch_of(raw: Raw, made: Raw, fields: Sequence[Path]) -> BatchFields:
    """Returns field → value of the batch that a record belongs to, and its micro-batch.

    Raises:
        InputError: where a field is missing, or is no number or text.
    """
    found = BatchFields({spelled(field): _value(raw, made, field) for field in fields})
    rank, number = (
        _first(raw.value, [name for name in names if name not in found])
        for names in (RANK_FIELDS, MICRO_BATCH_FIELDS)
    )
    source = raw.source if rank is None and number is not None else ""
    found.micro_batch = MicroBatch(rank, number, source)
    return found


def _first(value: Any, names: Sequence[str]) -> Hashable:
    """The first of some fields that is there or in ``meta``, if it is a number or text."""
    known = value if isinstance(value, Mapping) else {}
    if isinstance(meta := known.get("meta"), Mapping):
        known = {**meta, **known}
    found = next((_scalar(known[one]) for one in names if known.get(one) is not None), None)
    return hashable(found) if isinstance(found, str | int | float) else None


def _scalar(value: Any) -> Any:
    """A value; the only one of a table's cell of one response."""
    return only_element(value.item() if isinstance(value, np.generic) else value)


def key_of(batch: Mapping[str, Any] | None) -> Hashable:
    """Returns what records of one batch have in common."""
    return tuple(map(hashable, (batch or {}).values()))


def _value(raw: Raw, made: Raw, field: Path) -> Any:
    """The value of a field in the file, the record, or its ``meta``, where convert writes it."""
    message = ""
    for value, path in product((raw.value, made.value), (field, ("meta", *field))):
        try:
            found = _scalar(look_up(value, path))
        except Missing:
            continue
        if isinstance(found, str | int | float):
            return found
        message = f"expected a number or text to group records by, got {got(found)}"
        break
    else:
        if field == (FILE,):
            return raw.source
    raise InputError(
        message or _missing(raw.value, field),
        path=raw.prefix + spelled(field),
        source=raw.source,
        line=raw.line,
    )


def _missing(value: Any, field: Path) -> str:
    known = list(value) if isinstance(value, Mapping) and len(field) == 1 else []
    message = "missing; every record needs this field"
    near = did_you_mean(spelled(field), known, cutoff=0.75)
    there = [name for name in known if isinstance(value[name], str | int | float)][:_LISTED]
    return message + (near or (f"; this one has {', '.join(there)}" if there else ""))


_LISTED = 8
"""Fields of a record that an error lists at most."""


def steps_in(chunk: DecodedChunk) -> dict[str, set[Any]]:
    """Returns a field that says steps → the steps of some records, as they have them."""
    if chunk.keys is not None:
        name = next((name for name in STEP_FIELDS if name in chunk.keys), None)
        if name is None:
            return {}
        return {name: _scalars([raw.value[name] for raw in chunk.items if isinstance(raw, Raw)])}
    found: dict[Path, list[Any]] = {}
    for raw in (item for item in chunk.items if isinstance(item, Raw)):
        if (path := step_field(raw)) is not None:
            given = reduce(getitem, path, raw.value)
            found.setdefault(path, []).extend(given if isinstance(given, list) else [given])
    return {spelled(path): _scalars(steps) for path, steps in found.items()}


def _scalars(values: Sequence[Any]) -> set[Any]:
    """The numbers and texts."""
    if {*map(type, values)} <= {int, str}:
        return set(values)
    return {value for value in values if isinstance(value, str | int | float)}
