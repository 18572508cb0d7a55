"""Blocks of lines → decoded objects, in chunks."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, compress
from typing import Any

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.formats.unipo import headed_objects
from grpo_cli.records.open.blocks import Block, Span
from grpo_cli.records.places import got
from grpo_cli.records.record import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    DecodedChunk,
    Decoding,
    Made,
    Raw,
    always,
    in_chunks,
    keys_in_common,
)

_LARGE = 16 << 20
_OBJECTS = 8
"""Bytes of objects for a byte of text: a number of four characters takes 32."""


def decoded(
    block: Block | Span,
    wanted: Callable[[bytes, int], bool] | None = None,
    decoding: Decoding = always,
) -> Iterator[DecodedChunk]:
    """Decodes the objects of a block in chunks."""
    block = block.fetch() if isinstance(block, Span) else block
    if block.document:
        yield from in_chunks(_of_document(block))
        return
    texts: Sequence[bytes] = block.lines
    numbers: Sequence[int] = block.numbers or range(block.line, block.line + len(texts))
    if wanted is not None:
        kept = list(map(wanted, texts, numbers))
        texts, numbers = list(compress(texts, kept)), list(compress(numbers, kept))
    before = list(accumulate(map(len, texts), initial=0))
    start = 0
    while start < len(texts):
        end = min(bisect_left(before, before[start] + CHUNK_BYTES), start + CHUNK_RECORDS)
        yield _decoded(block.source, texts[start:end], numbers[start:end], decoding)
        start = end


def _decoded(
    source: str, texts: Sequence[bytes], numbers: Sequence[int], decoding: Decoding
) -> DecodedChunk:
    if len(texts[-1]) > _LARGE:
        bytearray(_OBJECTS * len(texts[-1]))  # a MemoryError, where orjson would crash
    try:
        values, _ = decoding(texts, partial(_load, texts))
    except orjson.JSONDecodeError:
        return DecodedChunk(list(_line_by_line(source, texts, numbers)))
    lines = zip(values, numbers, texts, strict=True)
    items = [
        Raw(value, source, number, "", len(text), partial(decode, text))
        for value, number, text in lines
    ]
    return DecodedChunk(items, keys_in_common(values))


def _load(texts: Sequence[bytes]) -> Made:
    return list(map(orjson.loads, texts)), _OBJECTS * sum(map(len, texts))


def _line_by_line(
    source: str, texts: Sequence[bytes], numbers: Sequence[int]
) -> Iterator[Raw | InputError]:
    """Lines with one that is no JSON, or empty."""
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


_WORDS = {
    "Expecting value": "expected a value",
    "Expecting ',' delimiter": "expected a comma or a closing bracket",
    "Expecting ':' delimiter": "expected a colon",
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Unterminated string starting at": "the string that begins here never ends",
    "Extra data": "expected the end",
    "Illegal trailing comma before end of object": "expected a key in double quotes",
    "Illegal trailing comma before end of array": "expected a value",
}
_UTF_8 = "expected UTF-8 text; for Latin-1 text: iconv -f LATIN1 -t UTF-8"
_INCOMPLETE = ": the line is incomplete (was it still being written?)"
_UNFINISHED = re.compile(r"[-+.\w\\]*")
"""What is left of a text that ends within a number, a word or an escape, or after one."""
_SHORT = 120  # characters of a line that somebody typed
_LONGEST_INTEGER = 20  # characters of -(2**63) and of 2**64 - 1


def decode(text: bytes) -> Any:
    """The value of one JSON text.

    NaN, Infinity and numbers out of range are let through, so that the check of the values can
    say where they stand (and a masked one is fine).

    Raises:
        InputError: if it is malformed; ``line`` counts from 1 within the text.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _decode_carefully(text)


def _decode_carefully(text: bytes) -> Any:
    try:
        value = json.loads(text.decode("utf-8"), parse_int=_integer)
    except UnicodeDecodeError as error:
        before = text[: error.start].decode("utf-8")
        column = len(before) - before.rfind("\n")
        cut = error.reason == "unexpected end of data" and len(text) > _SHORT
        words = _UTF_8 + _INCOMPLETE * cut
        raise _malformed(before.count("\n") + 1, column, words) from None
    except json.JSONDecodeError as error:
        raise _malformed(error.lineno, error.colno, _describe(error)) from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply") from None
    if b"\\ud" in text.lower():
        # Half a surrogate pair cannot be written out again; the character is lost already.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return json.loads(whole, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    # Python refuses to read integers of thousands of digits; orjson takes those that need more
    # than 64 bits for floats, and what a number is must not depend on a NaN elsewhere.
    if len(digits) > _LONGEST_INTEGER:
        return float(digits)
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else float(digits)


def _describe(error: json.JSONDecodeError) -> str:
    words = _WORDS.get(error.msg, error.msg[:1].lower() + error.msg[1:])
    rest = error.doc[error.pos :].strip()
    if words.startswith("expected"):
        word = rest.split(maxsplit=1)[0] if rest else "the end"
        words += f", got {word if len(word) <= 12 else word[:12] + '…'}"
        if rest.startswith("'"):
            words += "; JSON has double quotes (from Python: json.dumps)"
        if error.msg == "Extra data" and rest[:1] == "," and rest[1:2] in ("", "\n", "\r"):
            words += "; leave out the comma after each line"
    unfinished = error.msg != "Extra data" and error.pos > 0 and _UNFINISHED.fullmatch(rest)
    if len(error.doc) > _SHORT and (unfinished or words.startswith("the string that begins")):
        words += _INCOMPLETE
    return words


def _malformed(line: int, column: int, words: str) -> InputError:
    return InputError(f"malformed JSON at column {column}: {words}", line=line)


_RECORD = '{"log_probs": [[-0.1]], "rewards": [1]}'


def as_object(value: object) -> dict[str, Any]:
    """Returns ``value`` if it can be a record.

    Raises:
        InputError: if it is not an object.
    """
    if isinstance(value, dict):
        return value
    raise InputError(f"expected a record such as {_RECORD}, got {got(value)}")
