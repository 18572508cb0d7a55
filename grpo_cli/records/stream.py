"""Files → blocks → records: what the engine's stream is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from grpo_cli.errors import InputError
from grpo_cli.records.decode import decode
from grpo_cli.records.parse import parse
from grpo_cli.records.record import Record
from grpo_cli.records.sources import LIMIT, blocks, chunks, shown

Lines = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a file that can be read on its own, by any process.

    Attributes:
        source: the file as the user named it.
        line: the 1-based number of its first line.
        data: whole lines.
        document: whether the lines are one JSON text together, not one each.
    """

    source: str
    line: int
    data: bytes
    document: bool = False


def cut(path: str) -> Iterator[Block]:
    """Cuts a file (``-`` for standard input) into blocks; JSON and JSONL are told apart by content.

    Raises:
        InputError: for a file that cannot be read, has nothing in it, or is one document of more
            than 1 GiB.
    """
    source = shown(path)
    try:
        lines = blocks(chunks(path))
        first = next((block for block in lines if not block[1].isspace()), None)
        if first is None:
            raise InputError("no records: the input is empty")
        everything = chain((first,), lines)
        if _is_document(first[1]):
            line, data = _whole(everything)
            yield Block(source, line, data, document=True)
            return
        for line, data in everything:
            yield Block(source, line, data)
    except InputError as error:
        error.source = source
        raise


def _is_document(data: bytes) -> bool:
    """Whether the first line is only the beginning of a value, or a whole array of records.

    An object that ends on the line it begins on is a record, even if there is a mistake in it.
    """
    line = data.lstrip().partition(b"\n")[0].rstrip()
    return line.startswith(b"[") or (line.startswith(b"{") and not line.endswith(b"}"))


def _whole(lines: Iterator[Lines]) -> Lines:
    numbers, parts, size = [], [], 0
    for line, data in lines:
        numbers.append(line)
        parts.append(data)
        size += len(data)
        if size > LIMIT:
            raise InputError(
                "one JSON document of more than 1 GiB; write it as JSONL, one record a line"
            )
    return numbers[0], b"".join(parts)


def records(block: Block) -> Iterator[Record | InputError]:
    """Reads the records of a block; in the place of one that cannot be read stands its error."""
    return _of_document(block) if block.document else _of_lines(block)


def _of_lines(block: Block) -> Iterator[Record | InputError]:
    source = block.source
    for line, text in enumerate(block.data.split(b"\n"), block.line):
        if not text or text.isspace():
            continue
        try:
            yield parse(decode(text), source=source, line=line)
        except InputError as error:
            error.source, error.line = source, line
            yield error


def _of_document(block: Block) -> Iterator[Record | InputError]:
    try:
        value = decode(block.data)
    except InputError as error:
        error.source, error.line = block.source, block.line + (error.line or 1) - 1
        yield error
        return
    if not isinstance(value, list):
        yield _parsed(value, block.source, "")
    elif not value:
        yield InputError("no records: the array is empty", source=block.source)
    else:
        for number, one in enumerate(value):
            yield _parsed(one, block.source, f"[{number}].")


def _parsed(value: object, source: str, prefix: str) -> Record | InputError:
    try:
        return parse(value, source=source, prefix=prefix)
    except InputError as error:
        return error


def read(path: str) -> Iterator[Record]:
    """The records of a file.

    Raises:
        InputError: at the first that cannot be read.
    """
    for block in cut(path):
        for record in records(block):
            if isinstance(record, InputError):
                raise record
            yield record
