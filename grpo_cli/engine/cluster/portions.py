"""What a task is given of the input: a range of a large file, several small files, or a piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from grpo_cli.records import Piece, Reading, Source
from grpo_cli.records.open.ranges import Range, ranges, size_of
from grpo_cli.records.tables.pieces import slices

SIZE = 64 << 20
"""Bytes of a task: half a second of work, against a millisecond that Ray takes to give it."""


class Files(NamedTuple):
    """Files that one task reads from their beginning to their end.

    Attributes:
        sources: the files.
        size: how many bytes they have.
    """

    sources: tuple[Source, ...]
    size: int


class Part(NamedTuple):
    """A range of a file; a line that begins in it may end in those behind it.

    Attributes:
        range: the bytes.
        last: whether none is behind it.
    """

    range: Range
    last: bool


Portion = Files | Part | Piece


def portions(sources: Sequence[Source], reading: Reading, size: int) -> Iterator[Portion]:
    """The input in the order of its files, for tasks of about ``size`` bytes.

    What cannot be cut is read whole: packed files, documents, and files whose rows are put
    together to groups.
    """
    few: list[Source] = []
    held = 0
    for source in sources:
        parts = _parts(source, reading, size)
        if parts is None:
            few.append(source)
            held += _size(source)
            if held < size:
                continue
        if few:
            yield Files(tuple(few), held)
            few, held = [], 0
        yield from parts or ()
    if few:
        yield Files(tuple(few), held)


def _parts(source: Source, reading: Reading, size: int) -> Sequence[Portion] | None:
    """A file in parts; None where one task reads it whole."""
    if source.path == "-":
        return list(reading.pieces(source, size))
    if _size(source) <= size or reading.grouping is not None:
        return None
    rows = slices(source, grouping=None, whole=False)
    if rows is not None:
        return list(rows)
    cut = ranges(source, size)
    return None if cut is None else [Part(one, one is cut[-1]) for one in cut]


def _size(source: Source) -> int:
    try:
        return size_of(source.path)
    except OSError:
        return 0  # whoever reads it tells what is wrong
