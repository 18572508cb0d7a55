"""Blocks of lines → decoded objects, in chunks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, compress

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.decode import decode
from grpo_cli.records.formats.unipo import headed_objects
from grpo_cli.records.open.blocks import Block, Span
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

_LARGE = 16 << 20
_OBJECTS = 8
"""Bytes of objects for a byte of text: a number of four characters takes 32."""


def raws(block: Block | Span) -> Iterator[Raw | InputError]:
    """Decodes the objects of a block; an error in the place of one that is no JSON."""
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
    items = [
        Raw(value, source, number, "", len(text), partial(decode, text))
        for value, number, text in lines
    ]
    return DecodedChunk(items, keys_in_common(values))


def _line_by_line(
    source: str, texts: Sequence[bytes], numbers: Sequence[int]
) -> Iterator[Raw | InputError]:
    """Lines of which one is no JSON, or empty."""
    for text, number in zip(texts, numbers, strict=True):
        if not text or text.isspace():
            continue
        try:
            yield Raw(decode(text), source, number, "", len(text), partial(decode, text))
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
