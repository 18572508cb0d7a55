"""Ranges of a file's bytes, read by whoever, and put together to whole lines.

A range is cut anywhere. Whoever reads it says where its first line begins and how many it has; what
it has of a line that began before goes to the range where that began. So every byte is read once,
nobody goes through the file first, and lines still have their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.records.formats.unipo import headed, header_of, is_step
from grpo_cli.records.open.address import CHANGED, Address, Version
from grpo_cli.records.open.blocks import Block, Source, is_document
from grpo_cli.records.open.streams import BLOCK, LIMIT, plain, reason, split

Bytes = NDArray[np.uint8]
_FIRST = 64 << 10
_SCANNED = 1 << 18  # so much that it stays in cache
_END = ord("\n")
_FEW = 64
_AT_ONCE = 16 << 20  # fetched by one connection


class Range(NamedTuple):
    """Bytes of a file.

    Attributes:
        source: the file as the user named it.
        path: where it is.
        start, end: the place of the bytes.
        version: the version of the file that is meant.
        head: those bytes of it that were read already.
    """

    source: str
    path: str
    start: int
    end: int
    version: Version
    head: bytes = b""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.start


class Ends(NamedTuple):
    """What there is to know of a range that was read.

    Attributes:
        head: what it has of a line that began before it, with the line's end if that is here.
        rest: how many bytes follow.
        lines: how many lines end in these.
    """

    head: bytes
    rest: int
    lines: int

    @property
    def closes(self) -> bool:
        """Whether the line that began before ends here."""
        return self.head.endswith(b"\n")


def size_of(path: str) -> int:
    """The size of a file."""
    return version_of(path).size


def version_of(path: str) -> Version:
    """The version that a file has: of a remote one, when the run began."""
    if isinstance(path, Address):
        return path.version
    about = Path(path).stat()
    return Version(about.st_size, str(about.st_mtime_ns))


def ranges(source: Source, size: int) -> list[Range] | None:
    """A file in ranges of about equal sizes; None where it has to be read whole.

    That is what is packed, what is no lines but one document, and what is not in UTF-8.
    """
    version = version_of(source.path)
    head = _head(source.path, version.size)
    first = _first_of(head)
    if not plain(head) or not first or is_document(first):
        return None
    starts = [*range(0, version.size, size), version.size]
    made = [Range(source.name, source.path, start, end, version) for start, end in pairwise(starts)]
    made[0] = made[0]._replace(head=head[: made[0].end])
    return made


def _first_of(head: bytes) -> bytes:
    """The first line that is not empty."""
    return head.lstrip(b"\n\r\t ").partition(b"\n")[0]


def _head(path: str, size: int) -> bytes:
    """The first line that is not empty, and what was read with it."""
    head = path.head if isinstance(path, Address) else _local(path, 0, min(size, _FIRST))
    while len(head) < min(size, LIMIT) and b"\n" not in head.lstrip(b"\n\r\t "):
        head += _bytes_of(path, len(head), min(size, 4 * len(head)))
    return head


def fetch(wanted: Range) -> tuple[Ends, Bytes | None]:
    """Looks at a range: what there is to know of it, and its bytes behind its head.

    Of a file that is here, the bytes are not kept: they are read again from memory sooner than they
    would travel.

    Raises:
        InputError: where it cannot be read, or is not of the version that is meant.
    """
    if not isinstance(wanted.path, Address):
        return _scanned(wanted), None
    data = _bytes_of(wanted.path, wanted.start + len(wanted.head), wanted.end)
    data = wanted.head + data if wanted.head else data
    found = data.find(b"\n")
    begin = 0 if not wanted.start else found + 1 if found >= 0 else len(data)
    lines = _count(data, begin)
    return Ends(data[:begin], len(data) - begin, lines), np.frombuffer(data, np.uint8)[begin:]


def _count(data: bytes, begin: int) -> int:
    """How many lines end behind a place: a few as they are found, many by comparing each byte.

    The one is ten times as fast as ``bytes.count`` where lines are long, the other four times.
    """
    lines, found = 0, data.find(b"\n", begin)
    while found >= 0:
        lines, begin = lines + 1, found + 1
        if lines == _FEW:
            ends = np.frombuffer(data, np.uint8)[begin:] == _END
            return lines + int(np.count_nonzero(ends))
        found = data.find(b"\n", begin)
    return lines


def _scanned(wanted: Range) -> Ends:
    head, lines, closed = bytearray(), 0, not wanted.start
    for part in _read(wanted, _SCANNED):
        begin = 0
        if not closed:
            found = part.find(b"\n")
            closed = found >= 0
            begin = found + 1 if closed else len(part)
            head += part[:begin]
        lines += _count(part, begin)
    return Ends(bytes(head), wanted.size - len(head), lines)


def _read(wanted: Range, size: int) -> Iterator[bytes]:
    """The bytes of a range of a file that is here.

    Raises:
        InputError: where they cannot be read, or are not of the version that is meant.
    """
    left = wanted.size
    try:
        with Path(wanted.path).open("rb", 0) as stream:
            stream.seek(wanted.start)
            while left and (part := stream.read(min(left, size))):
                left -= len(part)
                yield part
        now = version_of(wanted.path)
    except OSError as error:
        raise InputError(reason(error), source=wanted.source) from None
    if left or now != wanted.version:
        raise InputError(CHANGED, source=wanted.source)


def _bytes_of(path: str, start: int, end: int) -> bytes:
    if not isinstance(path, Address):
        return _local(path, start, end)
    from concurrent.futures import ThreadPoolExecutor

    from grpo_cli.records.open import remote

    starts = range(start, end, _AT_ONCE)
    with ThreadPoolExecutor(4) as connections:
        read = connections.map(
            lambda begin: remote.read(path, begin, min(end, begin + _AT_ONCE)), starts
        )
        return b"".join(read)


def _local(path: str, start: int, end: int) -> bytes:
    with Path(path).open("rb") as stream:
        stream.seek(start)
        return stream.read(end - start)


def blocks_of(
    wanted: Range, line: int, rest: Bytes | None, completion: Sequence[bytes]
) -> Iterator[Block]:
    """The lines of a range, in blocks.

    Args:
        wanted: the range, from where its first whole line begins.
        line: the number of that, from 1.
        rest: its bytes, where they were kept.
        completion: what follows of its last line in the ranges behind it.

    Raises:
        InputError: where it cannot be read any more, or is not of the version that is meant.
    """
    held = b""
    for part in _read(wanted, BLOCK) if rest is None else _cut(rest):
        whole = part.rfind(b"\n") + 1
        if not whole:
            held += part
            continue
        lines = split(part, whole)
        lines[0] = held + lines[0]
        yield Block(wanted.source, line, _headed(wanted, lines))
        line, held = line + len(lines), part[whole:]
    last = b"".join([held, *completion])
    if last:
        yield Block(wanted.source, line, _headed(wanted, split(last, len(last))))


def _headed(wanted: Range, lines: list[bytes]) -> list[bytes]:
    """Lines whose settings stand in the first line of the file, with these."""
    if not any(map(is_step, lines)):
        return lines
    return headed(lines, header_of(_first_of(_head(wanted.path, wanted.version.size))))


def _cut(rest: Bytes) -> Iterator[bytes]:
    return (rest[start : start + BLOCK].tobytes() for start in range(0, len(rest), BLOCK))
