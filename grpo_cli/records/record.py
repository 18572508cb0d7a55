"""A record as it was decoded, and one that was checked and is ready to become part of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records.places import Origin
from grpo_cli.records.unread import STEP_FIELDS, Misnamed

DROPPED: Any = ...
"""Marks a value that is not kept, since it can be made again."""


class MicroBatch(NamedTuple):
    """A record's place in its optimiser step.

    Attributes:
        rank: the data-parallel rank; None if the record does not say.
        number: the micro-batch of the rank; None if the record does not say.
        source: the file of a record that gives a number and no rank; empty otherwise.
    """

    rank: Hashable = None
    number: Hashable = None
    source: str = ""

    @property
    def given(self) -> tuple[bool, bool]:
        """Whether rank and number are known."""
        return self.rank is not None, self.number is not None


class BatchFields(dict[str, Any]):
    """Field → value of the batch that a record belongs to, and its place in it."""

    micro_batch = MicroBatch()


@dataclass(slots=True, eq=False)
class Raw:
    """A record as decoded, before anything was checked.

    Attributes:
        kept: its value, or ``DROPPED``.
        source, line, prefix: its place, as ``Record`` has it.
        size: about how many bytes it took.
        again: makes the value again, as from the text of its line; None where it cannot be made.
        origin: where its parts stand in the file, where it was made from something else.
        arrays: whether lists of numbers in it are arrays.
        key: what rows of one group have in common; None where they are not put together.
        batch: field → value, of the fields that say which batch it belongs to; None where none
            are asked for.
        rows: the rows that were put together, or the first of those that cannot be made again; none
            where it is an object of the file.
        columns: key → the values of all rows of its table, where each of them has all keys.
        at: the number of its row there.
        nulls: where a record that is read of it adds its ``nulls``, once.
    """

    kept: Any
    source: str
    line: int | None
    prefix: str
    size: int
    again: Callable[[], Any] | None = None
    origin: Origin | None = None
    arrays: bool = False
    key: Any = None
    batch: BatchFields | None = None
    rows: Sequence[Raw] = ()
    columns: Mapping[str, Sequence[Any]] | None = None
    at: int = 0
    nulls: Counter[str] | None = None

    @property
    def number(self) -> int:
        """The record's number, used for a missing id in every report and flag."""
        return _number(self.line, self.prefix)

    @property
    def value(self) -> Any:
        """Any JSON value; where it was dropped, it is made again, and again not kept."""
        if self.kept is DROPPED:
            assert self.again is not None
            return self.again()
        return self.kept

    @property
    def row(self) -> Any:
        """The value as written in the file, or the first where rows were put together."""
        return self.rows[0].value if self.rows else self.value

    def drop(self) -> None:
        """Forgets the value, where it can be made again."""
        if self.again is not None:
            self.kept = DROPPED
            for row in self.rows:
                row.drop()

    def plain(self) -> Any:
        """The value, of lists only."""
        return listed(self.value) if self.arrays else self.value


@contextmanager
def blaming(raw: Raw) -> Iterator[None]:
    """Puts the place of a record into an error that does not know it."""
    try:
        yield
    except InputError as error:
        if error.source is None:
            error.source, error.line = raw.source, raw.line
            error.path = raw.prefix + error.path
        raise


def _number(line: int | None, prefix: str) -> int:
    """The 0-based line, or the index in a JSON array or a table; 0 for a document."""
    if line is not None:
        return line - 1
    index = prefix.strip("[].")
    return int(index) if index.isdigit() else 0


@dataclass(slots=True, eq=False)
class Texts(Sequence[str]):
    """The texts of a response in an Arrow column, none of which is null: objects where asked for.

    Attributes:
        column: the texts of many responses.
        start, end: which are of this one.
    """

    column: Any
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, at: Any) -> Any:
        found = self.arrow[at]
        return found.to_pylist() if isinstance(at, slice) else found.as_py()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return bool(self.arrow.equals(other.arrow))
        return self.tolist() == other

    def __repr__(self) -> str:
        return repr(self.tolist())

    def __reduce__(self) -> Any:
        return list, (self.tolist(),)  # as what it is in any other process

    @property
    def arrow(self) -> Any:
        """The texts as an array of Arrow."""
        return self.column.slice(self.start, len(self))

    def tolist(self) -> list[str]:
        """The texts, as the method of an array."""
        found: list[str] = self.arrow.to_pylist()
        return found


ARRAYS = (np.ndarray, Texts)
"""What replaces an innermost list in the rows of a table."""
LISTS = (list, *ARRAYS)
"""What a list may be in the rows of a table."""


def listed(value: Any) -> Any:
    """A value with its arrays as the lists that a JSON file would have."""
    if isinstance(value, ARRAYS):
        value = value.tolist()
    if isinstance(value, list) and value and isinstance(value[0], LISTS):
        return [listed(one) for one in value]
    if isinstance(value, dict):
        return {key: listed(one) for key, one in value.items()}
    return value


def only_element(value: Any) -> Any:
    """The element of a list of one, as a cell of one response is; else the value."""
    return value[0] if isinstance(value, (list, np.ndarray)) and len(value) == 1 else value


@dataclass(slots=True, eq=False)
class Record:
    """A checked record, under canonical names. R responses.

    Token columns are kept as the bytes of float64 arrays, as they were written (masked tokens
    included); ``assemble`` lays them side by side and applies the mask.

    Attributes:
        source: the file as the user named it.
        line: its 1-based line, or None inside a JSON array or a document over many lines.
        prefix: what is put before a path in messages: ``"[4]."`` inside a JSON array, else ``""``.
        id: the record's own ``id``, or None.
        widths: [R] the number of tokens of each response as written.
        columns: canonical token column → float64 bytes.
        names: canonical name → the key that the user wrote, for messages.
        unknown: the keys that mean nothing, for messages, as ``names_inside`` has them.
        misnamed: columns of log-probs that it lacks → the unknown keys that may hold them.
        derived: the columns of log-probs that were computed from probabilities or ratios.
        nested: whether log-probs came as ``[G]`` (1), ``[G][T]`` (2) or ``[B][G][T]`` (3); a path
            is spelled accordingly.
        shape: for ``[B][G][T]``, the number of responses in each of the B groups.
        mask: a byte (0 or 1) for every token as written, or None.
        groups: [R] dense 0-based group number of each response, or None for a single group.
        group_labels: what the user calls each group, in the order of the numbers; None if unnamed.
        trajectories: [R] dense 0-based trajectory number of each response; None if each is one.
        trajectory_labels: what the user calls each trajectory; None if unnamed.
        of_turns: ``turn_rewards`` and ``state_ids`` → [R] those of each response's turns, states as
            numbers.
        versions: [N] the weights that sampled each token, -1 if unknown; None if all are.
        rewards: [R], or one list per response with a reward per function; None if absent.
        reward_names: the functions' names where they have any.
        reward_baselines: [R], the rewards of greedy responses; None if absent.
        advantages: [R] floats, or the bytes of a token column, or None.
        hyperparameters: canonical name → value as the record gives it (checked). Records share
            it; do not change it.
        tokens, token_ids, roles: [R] lists for display, or None.
        expected: the result that the record states, as written, or None.
        origin: where its parts stand in the file, where it was made from something else.
        batch: as ``Raw`` has it.
        step: the step that it says, or None.
        nulls: field → how many counted tokens, or responses, have null there.
    """

    source: str
    line: int | None
    prefix: str
    id: str | int | float | None
    widths: list[int]
    columns: dict[str, bytes]
    nested: int
    names: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    misnamed: Mapping[str, Misnamed] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    shape: list[int] | None = None
    mask: bytes | None = None
    groups: list[int] | None = None
    group_labels: list[Any] | None = None
    trajectories: list[int] | None = None
    trajectory_labels: list[Any] | None = None
    of_turns: dict[str, list[list[float]]] = field(default_factory=dict)
    versions: I64 | None = None
    rewards: list[float] | list[list[float]] | None = None
    reward_names: tuple[str, ...] = ()
    reward_baselines: list[float] | None = None
    advantages: list[float] | bytes | None = None
    hyperparameters: Mapping[str, Value] = field(default_factory=dict)
    tokens: Sequence[Sequence[str]] | None = None
    token_ids: list[list[int]] | None = None
    roles: list[list[str]] | None = None
    expected: dict[str, Any] | None = None
    origin: Origin | None = None
    batch: BatchFields | None = None
    step: str | int | float | None = None
    nulls: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str | int | float:
        """Its name in every report and flag: its id, or else its number."""
        return _number(self.line, self.prefix) if self.id is None else self.id


_SAYS_STEP = frozenset((*STEP_FIELDS, "meta"))


def step_of(value: Mapping[str, Any]) -> str | int | float | None:
    """The step that an object says, itself or in its ``meta``; joined rows have one.

    Responses with several values have none: ``rollout_id`` may name trajectories, not slime's step.
    """
    if value.keys().isdisjoint(_SAYS_STEP):
        return None
    for name in STEP_FIELDS:
        if name in value:
            break
    else:
        return step_of(value["meta"]) if isinstance(value["meta"], dict) else None
    found = value[name]
    if type(found) is int:
        return found
    if isinstance(found, (list, np.ndarray)) and len(found):
        found = found[0] if all(one == found[0] for one in found) else None
    found = found.item() if isinstance(found, np.generic) else found
    return found if isinstance(found, (str, int, float)) else None


CHUNK_BYTES, CHUNK_RECORDS = 1 << 20, 1 << 8
"""Text decoded together: enough that what is done once for a chunk is little (at a quarter of it,
``eval`` takes 1.05 to 1.1 times as long), but no more objects than stay in cache until they
are packed, and dropped."""


class DecodedChunk(NamedTuple):
    """Records that follow each other.

    Attributes:
        items: as decoded; an error in the place of one that cannot be read.
        keys: the keys that each of them has, in this order and with no null; None where they
            differ, or were not compared.
    """

    items: Sequence[Raw | InputError]
    keys: tuple[str, ...] | None = None


def in_chunks(items: Iterable[Raw | InputError]) -> Iterator[DecodedChunk]:
    """Puts objects together as they come."""
    waiting: list[Raw | InputError] = []
    room = CHUNK_BYTES
    for item in items:
        waiting.append(item)
        room -= item.size if isinstance(item, Raw) else 0
        if room <= 0 or len(waiting) == CHUNK_RECORDS:
            yield DecodedChunk(waiting)
            waiting, room = [], CHUNK_BYTES
    if waiting:
        yield DecodedChunk(waiting)


def one_by_one(decoded: Iterable[DecodedChunk]) -> Iterator[Raw | InputError]:
    """The records of chunks, one by one."""
    return chain.from_iterable(chunk.items for chunk in decoded)


Made = tuple[Any, int]
"""What was decoded, and about how many bytes of memory it takes."""
Decoding = Callable[[object, Callable[[], Made]], Made]
"""Content, which can be compared, and what decodes it → what was decoded."""

_AHEAD = 1 << 25
"""Bytes of memory that is decoded of one of two files ahead of the other."""


def always(_: object, decode: Callable[[], Made]) -> Made:
    """Decodes content."""
    return decode()


def once() -> tuple[Decoding, Decoding]:
    """Decode what two files have, content that is equal in both only once."""
    known: list[tuple[object, Made]] = []

    def first(content: object, decode: Callable[[], Made]) -> Made:
        made = decode()
        known.append((content, made))
        while sum([size for _, (_, size) in known]) > _AHEAD:
            del known[0]
        return made

    def second(content: object, decode: Callable[[], Made]) -> Made:
        while known:
            before, made = known.pop(0)
            if before == content:
                return made
        return decode()

    return first, second


def keys_in_common(values: Sequence[Any]) -> tuple[str, ...] | None:
    """The keys of objects, where they are the same, in the same order, and none is null."""
    if set(map(type, values)) != {dict}:
        return None
    kinds = set(map(tuple, values))
    if len(kinds) > 1 or None in chain.from_iterable(map(dict.values, values)):
        return None
    return kinds.pop()
