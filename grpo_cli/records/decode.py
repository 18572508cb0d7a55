"""Text → decoded objects, many at once; lenient about NaN, in plain words about all else."""

from __future__ import annotations

import json
from typing import Any

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.places import got

_WORDS = {
    "Expecting value": "expected a value",
    "Expecting ',' delimiter": "expected a comma or a closing bracket",
    "Expecting ':' delimiter": "expected a colon",
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Unterminated string starting at": "the string that begins here never ends",
    "Extra data": "expected nothing more",
    "Illegal trailing comma before end of object": "expected a key in double quotes",
    "Illegal trailing comma before end of array": "expected a value",
}
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
        value = json.loads(_unicode(text), parse_int=_integer)
    except json.JSONDecodeError as error:
        raise _malformed(error.lineno, error.colno, _describe(error)) from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply") from None
    if b"\\ud" in text.lower():
        # Half a surrogate pair cannot be written out again; the character is lost already.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return json.loads(whole, parse_int=_integer)
    return value


def _unicode(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        before = text[: error.start].decode("utf-8")
        line = before.count("\n") + 1
        column = len(before) - before.rfind("\n")
        raise _malformed(line, column, "expected UTF-8 text") from None


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
    if len(error.doc) > _SHORT and (not rest or words.startswith("the string that begins")):
        words += ": the line is incomplete (was it still being written?)"
    return words


def _malformed(line: int, column: int, words: str) -> InputError:
    return InputError(f"malformed JSON at column {column}: {words}", line=line)


def as_object(value: object) -> dict[str, Any]:
    """Returns ``value`` if it can be a record.

    Raises:
        InputError: if it is not an object.
    """
    if isinstance(value, dict):
        return value
    raise InputError(f"expected an object, got {got(value)}")
