"""Control characters in what is written for programs, as JSON's escapes.

A terminal obeys them, wherever the text is from.
"""

from __future__ import annotations

import re

_MOVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 but for tabs and ends of lines, DEL, C1, and what changes the direction of text."""


def escaped(text: str) -> str:
    r"""Text with ``\u001b`` in the place of a control character; in JSON it means the same."""
    if text.isprintable():
        return text
    return _MOVING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escaped_json(data: bytes) -> bytes:
    """JSON with the same values; that of numbers alone is returned as it is."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return escaped(data.decode()).encode()
