"""One fold, wherever it runs: pieces of the input → what each comes to → all of it merged.

A command says what a piece comes to (a function of its records) and how the results of pieces that
follow each other merge. Whether this process does it, others, or a cluster, is the reader's
business (``Reader.map``). What needs statistics of the whole input is a fold before the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from grpo_cli.records import DecodedChunk, Piece, Reading

Notices = dict[str, None]


T = TypeVar("T")


@dataclass(frozen=True)
class OnPiece(Generic[T]):
    """What is done with each piece, as a function that travels between processes."""

    work: Callable[[Iterable[DecodedChunk]], T]
    reading: Reading
    by_columns: bool = False

    def __call__(self, piece: Piece) -> tuple[T, Notices]:
        """What a piece comes to, and what is to be told of it once."""
        return self.all_of((piece,))

    def all_of(self, pieces: Iterable[Piece]) -> tuple[T, Notices]:
        """What pieces that follow each other come to as one."""
        notices: Notices = {}
        decoded = (
            self.reading.decoded(piece, notices, by_columns=self.by_columns) for piece in pieces
        )
        return self.work(chain.from_iterable(decoded)), notices
