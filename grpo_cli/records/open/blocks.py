"""Files → blocks → records: what the engine's stream is made of."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase, RawIOBase
from itertools import accumulate, chain, compress
from pathlib import Path
from typing import NamedTuple

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.decode import decode
from grpo_cli.records.formats.unipo import headed, headed_objects, header_of
from grpo_cli.records.open.address import address, is_remote
from grpo_cli.records.open.streams import (
    BLOCK,
    LIMIT,
    NOTHING,
    SHORTER,
    Limit,
    blocks,
    plain,
    shown,
    split,
    unpacked,
)
from grpo_cli.records.parse.record import parse
from grpo_cli.records.record import (
    CHUNK_BYTES,
    DecodedChunk,
    Raw,
    Record,
    in_chunks,
    keys_in_common,
    one_by_one,
)

Lines = tuple[int, list[bytes]]

_LARGE = 16 << 20
_OBJECTS = 8
"""Bytes of objects for a byte of text: a number of four characters takes 32."""
_JOINED = 1 << 16
_MANY = 1 << 16  # lines of a span: each is an object of some 50 bytes beside its own
_FETCH = 1 << 18  # read at once where spans are cut


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
            reason = f"cannot be read any more: {(error.strerror or str(error)).lower()}"
            raise InputError(reason, source=self.source) from None
        if not same:
            raise InputError("the file was replaced while it was read", source=self.source)
        if len(data) < self.size:
            raise InputError(SHORTER, source=self.source)
        return Block(self.source, self.line, split(data, self.size))


def _identity(stream: BufferedIOBase | RawIOBase) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


class Source(NamedTuple):
    """An input: what the user calls it, and where it is (``-`` for standard input)."""

    name: str
    path: str

    @classmethod
    def of(cls, path: str) -> Source:
        """The input that a command line names."""
        return cls(shown(path), address(path) if is_remote(path) else path)


def cut(source: str | Source, size: int = BLOCK) -> Iterator[Block]:
    """Cuts a file (``-`` for standard input) into blocks; JSON and JSONL are told apart by content.

    Raises:
        InputError: for a file that cannot be read, has nothing in it, or is one document of more
            than 1 GiB.
    """
    source = Source.of(source) if isinstance(source, str) else source
    try:
        with unpacked(source.path) as stream:
            limit = Limit.of(source.path)
            yield from _blocks(source.name, blocks(stream, size, limit), limit)
    except InputError as error:
        error.source = source.name
        raise


def _blocks(name: str, everything: Iterator[Lines], limit: Limit) -> Iterator[Block]:
    first, begun = _beginning(everything)
    if is_document(first):
        line, lines = _whole(begun, limit)
        yield Block(name, line, lines, document=True)
        return
    header = header_of(first)
    for line, lines in begun:
        yield Block(name, line, headed(lines, header))


def spans(source: Source, size: int = BLOCK) -> Iterator[Span] | None:
    """The same as places in the file; None where that cannot be (packed, a pipe, one document)."""
    if source.path == "-" or not Path(source.path).is_file():
        return None
    with Path(source.path).open("rb") as stream:
        if not plain(stream.read(4)):
            return None
    first = next(cut(source, size))
    if first.document or header_of(next(filter(bytes.strip, first.lines))):
        return None
    return _spans(source, size)


def _spans(source: Source, size: int) -> Iterator[Span]:
    line = 1  # of the span's start, while what was read has so many whole lines behind it
    lines = start = end = at = 0
    data = bytearray(min(size, _FETCH))  # one for all, so that it stays in cache
    with Path(source.path).open("rb", 0) as stream:
        file, expected = _identity(stream), os.fstat(stream.fileno()).st_size
        while read := stream.readinto(data):
            found = data.find(b"\n", 0, read)  # again and again: four times as fast as ``count``
            while found >= 0 and at + found - end < LIMIT:
                lines, end = lines + 1, at + found + 1
                found = data.find(b"\n", found + 1, read)
            at += read
            too_long = at - end >= LIMIT
            if end > start and (too_long or end - start >= size or lines >= _MANY):
                yield Span(source.name, source.path, line, start, end - start, file)
                line, lines, start = line + lines, 0, end
            if too_long:
                raise InputError(Limit(LIMIT).too_long(), source=source.name, line=line)
    if at > start:
        yield Span(source.name, source.path, line, start, at - start, file)
    if at < expected:
        raise InputError(SHORTER, source=source.name)


def _beginning(everything: Iterator[Lines]) -> tuple[bytes, Iterator[Lines]]:
    """The first line with anything in it, and all blocks from its own on."""
    for block in everything:
        for line in block[1]:
            if line and not line.isspace():
                return line, chain((block,), everything)
    raise InputError(NOTHING)


def is_document(line: bytes) -> bool:
    """Whether the first line is only the beginning of a value, or a whole array of records.

    An object that ends on the line it begins on is a record, even if there is a mistake in it.
    """
    line = line.strip()
    return line.startswith(b"[") or (line.startswith(b"{") and not line.endswith(b"}"))


def _whole(everything: Iterator[Lines], limit: Limit) -> Lines:
    """The first line's number, and the text; many short lines are not kept as so many objects."""
    numbers, whole, size = [], [], 0
    for number, lines in everything:
        numbers.append(number)
        whole.append(_joined(lines))
        size += len(whole[-1])
        if size > limit.size:
            raise InputError(limit.too_large())
    return numbers[0], whole


def _joined(lines: list[bytes]) -> bytes:
    """Lines as one text; by so many, since ``join`` takes 80 bytes for each until it is done."""
    parts = range(0, len(lines), _JOINED)
    return b"\n".join(b"\n".join(lines[start : start + _JOINED]) for start in parts)


def raws(block: Block | Span) -> Iterator[Raw | InputError]:
    """Decodes the objects of a block; in the place of one that is no JSON stands its error."""
    return one_by_one(decoded(block))


def decoded(
    block: Block | Span,
    wanted: Callable[[bytes, int], bool] | None = None,
) -> Iterator[DecodedChunk]:
    """Decodes the objects of a block in chunks.

    Args:
        block: what to read.
        wanted: whether a line is to be read, by its text and number; None for all of them.
    """
    block = block.fetch() if isinstance(block, Span) else block
    if block.document:
        return in_chunks(_of_document(block))
    texts: Sequence[bytes] = block.lines
    numbers: Sequence[int] = block.numbers or range(block.line, block.line + len(texts))
    if wanted is not None:
        kept = list(map(wanted, texts, numbers))
        texts, numbers = list(compress(texts, kept)), list(compress(numbers, kept))
    return _of_lines(block.source, texts, numbers)


def _of_lines(
    source: str, texts: Sequence[bytes], numbers: Sequence[int]
) -> Iterator[DecodedChunk]:
    before = list(accumulate(map(len, texts), initial=0))
    start = 0
    while start < len(texts):
        end = bisect_left(before, before[start] + CHUNK_BYTES)
        yield _decoded(source, texts[start:end], numbers[start:end])
        start = end


def _decoded(source: str, texts: Sequence[bytes], numbers: Sequence[int]) -> DecodedChunk:
    if len(texts[-1]) > _LARGE:
        bytearray(_OBJECTS * len(texts[-1]))  # a MemoryError, where orjson would crash
    try:
        values = list(map(orjson.loads, texts))
    except orjson.JSONDecodeError:
        return DecodedChunk(list(_line_by_line(source, texts, numbers)))
    lines = zip(values, numbers, texts, strict=True)
    items = [Raw(value, source, number, "", len(text), text) for value, number, text in lines]
    return DecodedChunk(items, keys_in_common(values))


def _line_by_line(
    source: str, texts: Sequence[bytes], numbers: Sequence[int]
) -> Iterator[Raw | InputError]:
    """Lines of which one is no JSON, or empty."""
    for text, number in zip(texts, numbers, strict=True):
        if not text or text.isspace():
            continue
        try:
            yield Raw(decode(text), source, number, "", len(text), text)
        except InputError as error:
            error.source, error.line = source, number
            yield error


def _of_document(block: Block) -> Iterator[Raw | InputError]:
    data = b"\n".join(block.lines)
    try:
        value = decode(data)
    except InputError as error:
        error.source = block.source
        if error.line is not None:  # within the text; else the place is not known
            error.line += block.line - 1
        yield error
        return
    if not isinstance(value, list):
        yield Raw(value, block.source, None, "", len(data))
    elif not value:
        yield InputError("no records: the array is empty", source=block.source)
    else:
        size = len(data) // len(value)
        for number, one in enumerate(headed_objects(value)):
            yield Raw(one, block.source, None, f"[{number}].", size)


def record(raw: Raw) -> Record | InputError:
    """The record that was decoded, or what is wrong with it."""
    try:
        made = parse(
            raw.plain(), source=raw.source, line=raw.line, prefix=raw.prefix, origin=raw.origin
        )
    except InputError as error:
        return error
    made.batch = raw.batch
    return made


def records(block: Block | Span) -> Iterator[Record | InputError]:
    """Reads the records of a block; in the place of one that cannot be read stands its error."""
    return (one if isinstance(one, InputError) else record(one) for one in raws(block))


def read(path: str) -> Iterator[Record]:
    """The records of a file.

    Raises:
        InputError: at the first that cannot be read.
    """
    for block in cut(path):
        for one in records(block):
            if isinstance(one, InputError):
                raise one
            yield one
