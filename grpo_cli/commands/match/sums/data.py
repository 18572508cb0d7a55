"""What is asked about: records that can be gone over several times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator, without_misnamed
from grpo_cli.engine.facts import Skipped
from grpo_cli.engine.packing import chunks
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk

T = TypeVar("T")

TOGETHER = 1 << 22
"""Bytes of text whose records are evaluated together."""


class Data(Protocol):
    """What is asked about: records that can be gone over several times."""

    def fold(
        self, work: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """``zero`` with ``work`` done on its chunks of so many bytes, part by part."""
        ...  # pragma: no cover

    def kept(self) -> Few:
        """The same in memory."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class _OnPiece(Generic[T]):
    """The fold over a piece, as a function that travels between processes."""

    work: Callable[[Chunk, T], None]
    zero: Callable[[], T]
    together: int
    base: Evaluator | None

    def __call__(self, decoded: Iterable[DecodedChunk]) -> tuple[T, list[InputError]]:
        result, bad = self.zero(), []
        found = chunks(decoded, with_headers=False, together=self.together)
        for chunk in without_misnamed(found, self.base):
            if isinstance(chunk, Chunk):
                self.work(chunk, result)
            else:
                bad.append(chunk)
        return result, bad


@dataclass(frozen=True)
class Stream:
    """The files of a command.

    Attributes:
        reader: the files.
        base: the plan that is searched around; a record whose misnamed column it needs is bad.
    """

    reader: Reader
    base: Evaluator | None = None

    def fold(
        self, work: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """Piece by piece, in as many processes as the reader has."""
        self.reader.skipped = Skipped(self.reader.most_errors)
        on_piece = _OnPiece(work, zero, together, self.base)
        for _, (result, bad) in self.reader.map(on_piece, by_columns=True):
            for error in bad:
                self.reader.bad(error)
            yield result

    def kept(self) -> Few:
        """The same in memory: their columns alone."""
        return Few([replace(chunk, records=(), packed=()) for chunk in self.chunks()])

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of all files.

        Raises:
            InputError: at the first bad record, unless it is to be skipped.
        """
        for part in without_misnamed(self.reader, self.base):
            if isinstance(part, Chunk):
                yield part
            else:
                self.reader.bad(part)


@dataclass(frozen=True)
class Few:
    """Records in memory."""

    chunks: Sequence[Chunk]

    def fold(
        self, work: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """All at once."""
        del together
        result = zero()
        for chunk in self.chunks:
            work(chunk, result)
        yield result

    def kept(self) -> Few:
        """Themselves."""
        return self
