"""Rows in numbered files of a folder, which workers write, each whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Protocol

from grpo_cli.engine.cluster.folder import folder_of

Pack = Callable[[Sequence[Any], BinaryIO], None]
"""Writes pieces of output as a file."""


class Rows(Protocol):
    """What a portion has to come to, for its rows to be written.

    Attributes:
        pieces: the rows, in the form that ``Parts.pack`` takes.
        skipped: what was left out.
        error: why it ends early.
        records: how many it is of.
    """

    pieces: list[Any]
    skipped: Sized
    error: Exception | None

    @property
    def records(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Written:
    """A part that is there.

    Attributes:
        number: its place among the parts.
        name: the file.
        source, line: where its input begins.
        records: how many it is of.
        skipped: how many were left out.
        size, sha256: of the file.
        kept: whether it is of an earlier run.
    """

    number: int
    name: str
    source: str
    line: int
    records: int
    skipped: int
    size: int
    sha256: str
    kept: bool = False


def joined(pieces: Sequence[Any], stream: BinaryIO, *, head: bytes = b"") -> None:
    """Lines, behind those that each file begins with."""
    stream.writelines([head, *pieces])


@dataclass(frozen=True)
class Parts:
    """Where rows go.

    Attributes:
        folder: which every worker can write to; a path with a scheme is one in a store.
        suffix: how a file's name ends.
        pack: what makes a file of the rows of a portion.
        known: the parts of an earlier run of the same, which are kept if they match.
    """

    folder: str
    suffix: str
    pack: Pack = joined
    known: Mapping[int, Written] = field(default_factory=dict)

    def kept(self, number: int) -> Written | None:
        """The part of an earlier run, where it is there and matches."""
        known = self.known.get(number)
        if known is None or folder_of(self.folder).digest(known.name) != known.sha256:
            return None
        return replace(known, kept=True)

    def write(self, number: int, results: Sequence[Any]) -> Written | None:
        """Writes the rows of a portion; nothing where there are none, or it ends in an error."""
        values: list[Rows] = [result.value for result in results]
        pieces = [piece for value in values for piece in value.pieces]
        for value in values:
            value.pieces = []
        if not pieces or any(value.error is not None for value in values):
            return None
        name = f"part-{number:06}{self.suffix}"
        with folder_of(self.folder).writing(name) as stream:
            self.pack(pieces, stream)
            size = stream.tell()
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        done = results[0].done
        records = sum(value.records for value in values)
        skipped = sum(len(value.skipped) for value in values)
        return Written(number, name, done.source, done.line, records, skipped, size, digest)
