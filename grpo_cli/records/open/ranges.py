"""Byte ranges of a file of lines, each for a process to read on its own.

A range may begin and end anywhere; its lines are those that begin in it. Whoever reads it skips the
line that began before and reads on to the end of the last, so nobody goes through the file first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.records.open.blocks import Block, Source
from grpo_cli.records.open.remote import CHANGED, Address, Version
from grpo_cli.records.open.streams import BLOCK, Pieces, blocks, read_bytes, reason, version_of

Bytes = NDArray[np.uint8]
_BEYOND = 16 << 10  # bytes behind a range that are read with it: its last line ends there
_SCANNED = 1 << 20  # so much that it stays in cache
_END = ord("\n")


class Range(NamedTuple):
    """The lines of a file that begin in some of its bytes.

    Attributes:
        source: the file as the user named it.
        path: where it is.
        start, end: the offsets of these bytes.
        version: the version of the file that is meant.
    """

    source: str
    path: str
    start: int
    end: int
    version: Version

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.start

    @property
    def before(self) -> int:
        """Where reading begins: at the byte that ends the line before, if one begins here."""
        return max(0, self.start - 1)


def ranges(source: Source, size: int) -> list[Range]:
    """Cuts a file that has a ``first_line`` into ranges of equal sizes."""
    version = version_of(source.path)
    starts = [*range(0, version.size, size), version.size]
    return [Range(source.name, source.path, start, end, version) for start, end in pairwise(starts)]


def look(wanted: Range) -> tuple[int, Bytes | None]:
    """Counts the line ends before the last byte of a range, for the numbers of the lines behind it.

    Returns:
        How many there are, and the bytes of a remote file, which are read only once; a local one
        is read again from memory sooner than its bytes would travel.

    Raises:
        InputError: where it cannot be read, or is not of the version that is meant.
    """
    last = wanted.end - 1
    if isinstance(wanted.path, Address):
        size = wanted.version.size
        data = read_bytes(wanted.path, wanted.before, min(size, wanted.end + _BEYOND))
        found = np.frombuffer(data, np.uint8)
        return _count(found[: last - wanted.before]), found
    read = _reading(wanted)
    starts = range(wanted.before, last, _SCANNED)
    counted = (np.frombuffer(read(at, min(last, at + _SCANNED)), np.uint8) for at in starts)
    return sum(map(_count, counted)), None


def _count(data: Bytes) -> int:
    return int(np.count_nonzero(data == _END))


def blocks_of(wanted: Range, before: int = 0, data: Bytes | None = None) -> Iterator[Block]:
    """The lines of a range, in blocks.

    Args:
        wanted: the range.
        before: what ``look`` counted in all ranges of the file before it.
        data: its bytes, where they were kept.

    Raises:
        InputError: where it cannot be read any more, or is not of the version that is meant.
    """
    first = before + (2 if wanted.start else 1)
    stream = BufferedReader(Pieces(_lines_of(wanted, _reading(wanted, data))), BLOCK)
    try:
        for number, lines in blocks(stream, BLOCK):
            yield Block(wanted.source, first + number - 1, lines)
    except InputError as error:
        error.source = error.source or wanted.source
        error.line = error.line and first + error.line - 1
        raise


def _lines_of(wanted: Range, read: Callable[[int, int], bytes]) -> Iterator[bytes]:
    """The bytes of whole lines that begin in a range."""
    begun, at = not wanted.start, wanted.before
    while at < wanted.version.size:
        beyond = at + max(_BEYOND, at - wanted.end)
        end = min(wanted.end, at + BLOCK) if at < wanted.end else beyond
        part = read(at, min(end, wanted.version.size))
        start, at = at, at + len(part)
        begin = 0
        if not begun:
            begin = part.find(b"\n") + 1
            if start + begin >= wanted.end or (not begin and at >= wanted.end):
                return  # no line begins here
            if not begin:
                continue
            begun = True
        stop = part.find(b"\n", max(begin, wanted.end - 1 - start)) + 1
        if at >= wanted.end and stop:
            yield part[begin:stop]
            return
        yield part[begin:]


def _reading(wanted: Range, data: Bytes | None = None) -> Callable[[int, int], bytes]:
    """What reads bytes from one offset to another, from those that were kept where they have them.

    Raises:
        InputError: (what it returns) where they cannot be read, or are of another version.
    """

    def read(start: int, end: int) -> bytes:
        if data is not None and end <= wanted.before + len(data):
            return data[start - wanted.before : end - wanted.before].tobytes()
        try:
            found = read_bytes(wanted.path, start, end)
            same = isinstance(wanted.path, Address) or version_of(wanted.path) == wanted.version
        except OSError as error:
            raise InputError(reason(error), source=wanted.source) from None
        if not same or len(found) < end - start:
            raise InputError(CHANGED, source=wanted.source)
        return found

    return read
