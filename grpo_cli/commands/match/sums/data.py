"""What is asked about: records that can be gone over several times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.skipped import Skipped
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

    def __call__(self, decoded: Iterable[DecodedChunk]) -> tuple[T, list[InputError]]:
        result, bad = self.zero(), []
        for chunk in chunks(decoded, with_headers=False, together=self.together):
            if isinstance(chunk, Chunk):
                self.work(chunk, result)
            else:
                bad.append(chunk)
        return result, bad


@dataclass(frozen=True)
class Stream:
    """The files of a command."""

    reader: Reader

    def fold(
        self, work: Callable[[Chunk, T], None], zero: Callable[[], T], together: int = TOGETHER
    ) -> Iterator[T]:
        """Piece by piece, in as many processes as the reader has."""
        self.reader.skipped = Skipped(self.reader.most_errors)
        for _, (result, bad) in self.reader.map(_OnPiece(work, zero, together), by_columns=True):
            for error in bad:
                self.reader.bad(error)
            yield result

    def kept(self) -> Few:
        """The same in memory: their columns alone."""
        bare = (replace(chunk, records=(), packed=()) for chunk in self.reader)
        return Few([*bare])


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
