"""Pieces of the input that are read together, and output that travels between processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pickle import PickleBuffer
from typing import Any, NamedTuple

from grpo_cli.records import Piece

_LARGE = 1 << 16  # bytes of a text that are worth a call of the system


class Pieces(list[Any]):
    """Output in order, whose large texts are sent to another process without a copy."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _pieces, ([_as_pickle_buffer(one) if protocol >= 5 else one for one in self],)


def _as_pickle_buffer(piece: Any) -> Any:
    large = isinstance(piece, bytes) and len(piece) >= _LARGE
    return PickleBuffer(piece) if large else piece


def _pieces(received: list[Any]) -> Pieces:
    """Pieces of what came, which some engines hand over as views of their own memory."""
    return Pieces(bytes(one) if isinstance(one, memoryview) else one for one in received)


class Bundle(NamedTuple):
    """Small pieces that follow each other, to be worked on as one."""

    pieces: tuple[Piece, ...]

    @property
    def source(self) -> str:
        """The file of the first."""
        return self.pieces[0].source

    @property
    def line(self) -> int:
        """The 1-based number of its first line."""
        return self.pieces[0].line

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(piece.size for piece in self.pieces)


def bundled(pieces: Iterable[Piece], size: int) -> Iterator[Bundle]:
    """The pieces, small ones together: so many as have half of ``size`` bytes."""
    waiting: list[Piece] = []
    room = size // 2
    for piece in pieces:
        waiting.append(piece)
        room -= piece.size
        if room <= 0:
            yield Bundle(tuple(waiting))
            waiting, room = [], size // 2
    if waiting:
        yield Bundle(tuple(waiting))
