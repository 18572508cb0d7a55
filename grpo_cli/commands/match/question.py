"""A logged number, and the records that it was logged of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator, without_misnamed
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.skipped import Skipped
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk

T = TypeVar("T")

_PARTS = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")

TOGETHER = 1 << 22
"""Bytes of text whose records are evaluated together."""


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


class Data(Protocol):
    """Records that can be read several times."""

    def fold(
        self, add: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """Yields sums, piece by piece: ``zero()`` with the piece's chunks added.

        Args:
            add: adds a chunk to sums.
            zero: makes the sums of no record.
            together: bytes of text in a chunk.
        """
        ...  # pragma: no cover

    def in_memory(self) -> InMemory:
        """Loads the records."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class _OnPiece(Generic[T]):
    """Adds up a piece; travels between processes."""

    add: Callable[[Chunk, T], None]
    zero: Callable[[], T]
    together: int
    base: Evaluator | None

    def __call__(self, decoded: Iterable[DecodedChunk]) -> tuple[T, list[InputError]]:
        result, errors = self.zero(), []
        found = chunks(decoded, with_headers=False, together=self.together)
        for chunk in without_misnamed(found, self.base):
            if isinstance(chunk, Chunk):
                self.add(chunk, result)
            else:
                errors.append(chunk)
        return result, errors


@dataclass(frozen=True)
class Stream:
    """The files of a command.

    Attributes:
        reader: reads them.
        base: the plan that is searched around; a record whose misnamed column it needs is bad.
    """

    reader: Reader
    base: Evaluator | None = None

    def fold(
        self, add: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """Reads the files, in as many processes as the reader has."""
        self.reader.skipped = Skipped(self.reader.most_errors)
        on_piece = _OnPiece(add, zero, together, self.base)
        for _, (result, errors) in self.reader.map(on_piece, by_columns=True):
            for error in errors:
                self.reader.bad(error)
            yield result

    def in_memory(self) -> InMemory:
        """Loads the numbers of the records."""
        return InMemory([replace(chunk, records=(), packed=()) for chunk in self.chunks()])

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of all files.

        Raises:
            InputError: at the first bad record, unless bad records are skipped.
        """
        for part in without_misnamed(self.reader, self.base):
            if isinstance(part, Chunk):
                yield part
            else:
                self.reader.bad(part)


@dataclass(frozen=True)
class InMemory:
    """Records in memory."""

    chunks: Sequence[Chunk]

    def fold(
        self, add: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """Adds up all chunks as one piece."""
        del together
        result = zero()
        for chunk in self.chunks:
            add(chunk, result)
        yield result

    def in_memory(self) -> InMemory:
        """Itself."""
        return self


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
