"""Tokens as people read them: byte-level and SentencePiece marks undone, nothing invisible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from grpo_cli.terminal.numbers import visible

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def readable(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The tokens of all responses as text.

    Byte-level BPE (GPT-2's alphabet, seen by its Ġ and Ċ) is decoded to UTF-8, half a character
    as escaped bytes; SentencePiece's ▁ is a space and its ``<0x0A>`` a byte; others are text.
    """
    everything = "".join(token for row in rows for token in row)
    if "Ġ" in everything or "Ċ" in everything:
        return [[_from_bytes(token) for token in row] for row in rows]
    if "▁" in everything:
        return [[_from_pieces(token) for token in row] for row in rows]
    return [list(row) for row in rows]


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's character → the byte it stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


def _from_bytes(token: str) -> str:
    known = _alphabet()
    if any(character not in known for character in token):
        return token  # an added token, such as a chat mark, is text as it stands
    return bytes(known[one] for one in token).decode("utf-8", "backslashreplace")


def _from_pieces(token: str) -> str:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is None:
        return token.replace("▁", " ")
    return bytes([int(byte.group(1), 16)]).decode("utf-8", "backslashreplace")


def flowing(text: str) -> str:
    """A token in running text: line ends show and still end the line; nothing is empty."""
    if not text:
        return "∅"
    if text.isprintable():
        return text
    return "".join("↵\n" if one == "\n" else visible(one) for one in text)
