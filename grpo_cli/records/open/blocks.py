"""Files and streams → blocks of lines, which any process can read on its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase, BytesIO, RawIOBase
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.records.open.budget import LIMIT, UNLIMITED, Budget
from grpo_cli.records.open.foreign import LOOKED_AT, foreign
from grpo_cli.records.open.remote import CHANGED, Address, Version, address, is_remote
from grpo_cli.records.open.streams import (
    BLOCK,
    NOTHING,
    SHORTER,
    blocks,
    budget_of,
    is_whole,
    plain,
    read_bytes,
    read_head,
    reason,
    shown,
    split,
    unpacked,
    version_of,
)

Lines = tuple[int, list[bytes]]


class Cut(NamedTuple):
    """A group of rows in a block: how many lines it has, its name, and what is wrong with it."""

    size: int
    label: object
    fault: InputError | None


class Block(NamedTuple):
    """A piece of a file that can be read on its own, by any process.

    Attributes:
        source: the file as the user named it.
        line: the 1-based number of its first line.
        lines: whole lines, without their ends.
        document: whether the lines are one JSON text together, not one each.
        numbers: the 1-based number of each line, where they do not follow each other.
        groups: the groups that the lines are, where rows are put together; each is whole.
    """

    source: str
    line: int
    lines: list[bytes]
    document: bool = False
    numbers: list[int] | None = None
    groups: list[Cut] | None = None

    @property
    def size(self) -> int:
        """How many bytes it took, unpacked."""
        return sum(map(len, self.lines)) + len(self.lines)


class Span(NamedTuple):
    """A block that is still in its file, for a process to fetch itself.

    Attributes:
        source: the file as the user named it.
        path: where it is.
        line: the 1-based number of its first line.
        start, size: its place in the file, in bytes.
        file: the device and inode of the file that was cut.
    """

    source: str
    path: str
    line: int
    start: int
    size: int
    file: tuple[int, int]

    def fetch(self) -> Block:
        """Reads it.

        Raises:
            InputError: where the file is gone, another one, or shorter than it was.
        """
        try:
            with Path(self.path).open("rb") as stream:
                same = _identity(stream) == self.file
                stream.seek(self.start)
                data = stream.read(self.size)
        except OSError as error:
            reason = f"cannot be read any further: {(error.strerror or str(error)).lower()}"
            raise InputError(reason, source=self.source) from None
        if not same:
            raise InputError("the file was replaced while grpo read it", source=self.source)
        if len(data) < self.size:
            raise InputError(SHORTER, source=self.source)
        return Block(self.source, self.line, split(data))


def _identity(stream: BufferedIOBase | RawIOBase) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


@dataclass
class Source:
    """An input: what the user calls it, and where it is (``-`` for standard input).

    Attributes:
        keep: whether the bytes of a small file are kept, so that it is opened once.
    """

    name: str
    path: str
    keep: bool = field(default=True, compare=False)
    _bytes: bytes = field(default=b"", init=False, repr=False, compare=False)

    @classmethod
    def of(cls, path: str) -> Source:
        """The input that a command line names."""
        return cls(shown(path), address(path) if is_remote(path) else path)

    @property
    def head(self) -> bytes:
        """Its first bytes: of a small file all of them."""
        head = self._bytes or read_head(self.path)
        if self.keep and is_whole(head):
            self._bytes = head
        return head


def cut(source: str | Source, size: int = BLOCK, most: int | None = None) -> Iterator[Block]:
    """Cuts a file (``-`` for standard input) into blocks; its content says whether it is JSONL.

    Raises:
        InputError: for a file that cannot be read, has nothing in it, or is one document of more
            than 1.07 GB.
    """
    source = Source.of(source) if isinstance(source, str) else source
    try:
        with unpacked(source.path, source.head, most) as stream:
            limit = budget_of(stream)
            each = blocks(stream, size, limit)
            for first in each:
                begins = next(filter(bytes.strip, first[1]), None)
                if begins is not None:
                    break
            else:
                raise InputError(NOTHING)
            each = chain((first,), each)
            if is_document(begins):
                yield Block(source.name, first[0], _whole(each, limit), document=True)
                return
            for line, lines in each:
                yield Block(source.name, line, lines)
    except InputError as error:
        error.source = source.name
        raise


def first_line(source: Source) -> bytes | None:
    """The first line with anything in it; None where a file cannot be read at any place.

    That is what is packed, a pipe, not in UTF-8, one document, or no text.
    """
    head, path = source.head, source.path
    if not head or not plain(head) or foreign(head[:LOOKED_AT], path):
        return None
    size = version_of(path).size
    while len(head) < min(size, LIMIT) and b"\n" not in head.lstrip(b"\n\r\t "):
        head += read_bytes(path, len(head), min(size, 4 * len(head)))
    first = head.lstrip(b"\n\r\t ").partition(b"\n")[0]
    return None if not first or is_document(first) else first


def spans(source: Source, size: int = BLOCK) -> Iterator[Span]:
    """Cuts a file of lines, as ``cut`` does, into places where a process finds them."""
    line, start = 1, 0
    with Path(source.path).open("rb") as stream:
        file, expected = _identity(stream), os.fstat(stream.fileno()).st_size
        while data := stream.read(min(size, LIMIT)):
            whole = data.rfind(b"\n") + 1
            data += stream.readline(LIMIT)
            too_long = len(data) - whole - data.endswith(b"\n") >= LIMIT
            end = whole if too_long else len(data)
            if end:
                yield Span(source.name, source.path, line, start, end, file)
            line, start = line + data.count(b"\n", 0, end), start + end
            if too_long:
                raise InputError(UNLIMITED.too_long(), source=source.name, line=line)
    if start < expected:
        raise InputError(SHORTER, source=source.name)


def is_document(line: bytes) -> bool:
    """Whether the first line is only the beginning of a value, or a whole array of records.

    An object that ends on the line it begins on is a record, even if there is a mistake in it.
    """
    line = line.strip()
    return line.startswith(b"[") or (line.startswith(b"{") and not line.endswith(b"}"))


def _whole(each: Iterator[Lines], limit: Budget) -> list[bytes]:
    """The text of all blocks, one string for each: many short lines would be as many objects."""
    whole, size = [], 0
    for _, lines in each:
        whole.append(b"\n".join(lines))
        size += len(whole[-1])
        if size > limit.line:
            raise InputError(limit.too_large())
    return whole


Bytes = NDArray[np.uint8]
_BEYOND = 16 << 10  # bytes behind a range that are read with it: its last line ends there


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
    def read_from(self) -> int:
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
    data = _read(wanted, wanted.read_from, wanted.end + _BEYOND)
    count = data.count(b"\n", 0, wanted.end - 1 - wanted.read_from)
    return count, np.frombuffer(data, np.uint8) if isinstance(wanted.path, Address) else None


def blocks_of(wanted: Range, before: int = 0, data: Bytes | None = None) -> Iterator[Block]:
    """The lines of a range, in blocks.

    Args:
        before: what ``look`` counted in all ranges of the file before it.
        data: its bytes, where they were kept.

    Raises:
        InputError: where it cannot be read any more, or is not of the version that is meant.
    """
    first = before + (2 if wanted.start else 1)
    try:
        for number, lines in blocks(BytesIO(_lines_of(wanted, data)), BLOCK):
            yield Block(wanted.source, first + number - 1, lines)
    except InputError as error:
        error.source = error.source or wanted.source
        error.line = error.line and first + error.line - 1
        raise


def _lines_of(wanted: Range, data: Bytes | None) -> bytes:
    """The bytes of whole lines that begin in a range, of the last one at most ``LIMIT``."""
    at, begin = wanted.read_from, 0
    text = _read(wanted, at, wanted.end + _BEYOND) if data is None else data.tobytes()
    if wanted.start:
        begin = text.find(b"\n", 0, wanted.end - 1 - at) + 1
        if not begin:
            return b""  # no line begins here
    last = wanted.end - 1 - at
    while (stop := text.find(b"\n", last)) < 0 and at + len(text) < wanted.version.size:
        if len(text) - last > LIMIT:
            break
        last = max(last, len(text))
        text += _read(wanted, at + len(text), at + 2 * len(text))
    return text[begin : stop + 1 or None]


def _read(wanted: Range, start: int, end: int) -> bytes:
    """Bytes of a range's file from one offset to another, or to its end.

    Raises:
        InputError: where they cannot be read, or are of another version.
    """
    end = min(end, wanted.version.size)
    try:
        found = read_bytes(wanted.path, start, end)
        same = isinstance(wanted.path, Address) or version_of(wanted.path) == wanted.version
    except OSError as error:
        raise InputError(reason(error), source=wanted.source) from None
    if not same or len(found) < end - start:
        raise InputError(CHANGED, source=wanted.source)
    return found
