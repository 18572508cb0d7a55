"""A logged number, and the records that it was logged of."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from grpo_cli.batch import Batch, Segments
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator, without_misnamed
from grpo_cli.engine.fold import Accumulator, fold
from grpo_cli.engine.packing import chunks
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import DecodedChunk
from grpo_cli.records.packed import LARGEST, join, numbered

A = TypeVar("A", bound="Pass")

_PARTS = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class LoggedNumber:
    """A logged number.

    Attributes:
        name: "loss", "objective", or another total of ``grpo eval``.
        value: the number.
        half: by how much the number before rounding may differ: half a unit of the last digit.
    """

    name: str
    value: float
    half: float

    @classmethod
    def parse(cls, name: str, text: str, rtol: float | None = None) -> LoggedNumber:
        """Reads a number; its digits are the tolerance unless ``rtol`` is given."""
        value = float(text)
        if abs(value) > LARGEST:
            raise UsageError(f"--{name}: expected at most {LARGEST:g} in size, got {text}")
        return cls(name, value, half_unit(text) if rtol is None else rtol * abs(value))

    @property
    def rtol(self) -> float:
        """The tolerance relative to the number; infinite for 0."""
        return self.half / abs(self.value) if self.value else float("inf")

    @property
    def sign(self) -> float:
        """What J is multiplied by to be compared with the number: −1 for a loss."""
        return -1.0 if self.name == "loss" else 1.0


def half_unit(text: str) -> float:
    """Half a unit of the last digit: 0.0256 → 0.00005, 1.20e-3 → 0.000005."""
    found = _PARTS.fullmatch(text)
    assert found is not None  # the caller's number was parsed
    exponent = int(found[3] or 0) - len(found[2])
    return 0.5 * 10.0**exponent


class Pass(Accumulator[None]):
    """Adds up the chunks of a pass over the data, in ``add``.

    Attributes:
        base: the plan that is searched around; a record whose misnamed column it needs is bad.
        together: bytes of text in a chunk.
    """

    base: Evaluator | None = None
    together = 1 << 22
    settings: ClassVar[tuple[str, ...]] = ("base", "together")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together."""
        return chunks(decoded, with_headers=False, together=self.together, in_order=False)

    def evaluate(self, chunk: Chunk) -> None:
        """Checks the names of the columns.

        Raises:
            MisnamedColumnError: where the base plan needs a misnamed column.
        """
        if self.base is not None and chunk.batch.misnamed:
            self.base.refuse_misnamed(chunk)


def _with_base(make: Callable[[], A], base: Evaluator | None) -> A:
    made = make()
    made.base = base
    return made


_KEPT = 1 << 20
"""Tokens, and responses, that are kept in memory: 30 MB, where a file is read some ten times."""
_CHUNKS = 64
"""Chunks that are kept in memory, each of other columns or settings."""
_TOGETHER = 1 << 17
"""Tokens that are put together in memory."""
_START = 8192
"""Tokens that are evaluated in the time that a chunk takes to start."""


class Loaded(Pass):
    """The chunks of the input, without what only a report shows, and how many tokens they have.

    Attributes:
        kept: the chunks; empty where ``full`` says that there are too many, or too many tokens.
        tokens, count: of all chunks, kept or not.
    """

    def __init__(self) -> None:
        self.kept: list[Chunk] = []
        self.tokens = self.count = 0
        self.full = False

    def add(self, chunk: Chunk, found: None) -> None:
        """Keeps a chunk."""
        del found
        self._add([replace(chunk, records=(), packed=())], _size(chunk.batch), 1)

    def merge(self, later: Loaded) -> None:
        """Keeps the chunks of other records."""
        self.full |= later.full
        self._add(later.kept, later.tokens, later.count)

    def _add(self, kept: Sequence[Chunk], tokens: int, count: int) -> None:
        self.tokens, self.count = self.tokens + tokens, self.count + count
        self.full |= self.tokens > _KEPT
        self.kept += kept
        if len(self.kept) > 2 * _CHUNKS:
            self.kept = [*InMemory.of(self.kept).chunks]
            self.full |= len(self.kept) > _CHUNKS
        if self.full:
            self.kept = []


def _size(batch: Batch) -> int:
    return batch.responses.total + batch.responses.count


@dataclass(frozen=True)
class Stream:
    """The files of a command, which are read once for each pass.

    Attributes:
        reader: reads them.
        base: as in ``Pass``.
        work: how long a pass takes, in tokens.
    """

    reader: Reader
    base: Evaluator | None = None
    work: float = 0.0

    def fold(self, make: Callable[[], A]) -> A:
        """Reads the files, in as many processes as the reader has; ``make`` travels there."""
        return fold(self.reader, partial(_with_base, make, self.base))

    def loaded(self) -> Data:
        """The records in memory, if they are few enough."""
        found = self.fold(Loaded)
        if found.kept:
            return InMemory.of(found.kept)
        return replace(self, work=found.tokens + float(_START) * found.count)

    def first(self) -> Chunk:
        """The first chunk.

        Raises:
            InputError: where no record can be read; at a bad record, unless these are skipped.
        """
        for part in without_misnamed(self.reader, self.base):
            if isinstance(part, Chunk):
                return part
            self.reader.bad(part)
        raise InputError("no record can be read")


@dataclass(frozen=True)
class InMemory:
    """Records in memory."""

    chunks: Sequence[Chunk]

    @classmethod
    def of(cls, given: Iterable[Chunk]) -> InMemory:
        """Chunks; those of the same columns and hyperparameters are put together."""
        alike: dict[Hashable, list[list[Chunk]]] = {}
        for chunk in given:
            parts = alike.setdefault(_kind(chunk), [[]])
            if sum(_size(one.batch) for one in parts[-1]) >= _TOGETHER:
                parts.append([])
            parts[-1].append(chunk)
        return cls([_joined(some) for parts in alike.values() for some in parts])

    @cached_property
    def work(self) -> float:
        """How long a pass takes, in tokens."""
        return sum(_START + _size(one.batch) for one in self.chunks)

    def fold(self, make: Callable[[], A]) -> A:
        """Adds up all chunks."""
        result = make()
        for chunk in self.chunks:
            result.add(chunk, None)
        return result


_NUMBERED = {"groups": "group_count", "trajectories": "trajectory_count"}


def _kind(chunk: Chunk) -> Hashable:
    """What chunks have in common that can be put together."""
    batch, settings = chunk.batch, chunk.settings.items()
    columns = {one.name: getattr(batch, one.name) for one in fields(batch)}
    shapes = [(name, one.shape[1:]) for name, one in columns.items() if isinstance(one, np.ndarray)]
    same = tuple(sorted((name, repr(value)) for name, value in settings))
    return (*shapes,), (*batch.misnamed.items(),), same, chunk.advantages_given


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks of one kind as one."""
    if len(chunks) == 1:
        return chunks[0]
    made: dict[str, Any] = {}
    for name in (one.name for one in fields(Batch)):
        values = [getattr(chunk.batch, name) for chunk in chunks]
        if isinstance(values[0], Segments):
            made[name] = Segments(join([one.lengths for one in values]))
        elif isinstance(values[0], np.ndarray) and name not in _NUMBERED:
            made[name] = join(values)
        else:
            made.setdefault(name, values[0])
    for name, count in _NUMBERED.items():
        pairs = [(getattr(chunk.batch, name), getattr(chunk.batch, count)) for chunk in chunks]
        if made[name] is not None:
            made[name], made[count] = numbered(pairs)
    return replace(chunks[0], batch=Batch(**made))


Data = Stream | InMemory
"""Records that can be read several times."""


@dataclass(frozen=True)
class Question:
    """A number, and the records that it was logged of.

    Attributes:
        target: the loss or the objective.
        data: the records; ``first`` is their first chunk.
        others: other numbers of the same records: kl, clip_fraction, gradient_norm.
    """

    target: LoggedNumber
    data: Data
    first: Chunk
    others: Sequence[LoggedNumber] = ()
