"""Objects → the bytes of a file: JSON Lines, an array, one document; packed, damaged, cut off."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from typing import Any

from fuzz.changes import text_of

_BITS: tuple[bytes, ...] = (
    *(b"", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"NaN", b"null", b"1e999"),
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"[" * 2000, b'{"a":' * 500, b"\\u0065", b"-"),
    *(b"PAR1", b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
)


def laid_out(objects: list[Any], draw: random.Random) -> tuple[bytes, str]:
    """The bytes, and how they were laid out; ``lines`` where each object is a plain line."""
    how = draw.choices((*_LAYOUTS,), (60, 12, 8, 5, 4, 3, 3, 3, 2))[0]
    data = _LAYOUTS[how](objects)
    if draw.random() < 0.12:
        data, how = damaged(data, draw), "damaged"
    return data, how


def lines(objects: list[Any]) -> bytes:
    """An object a line."""
    return "".join(text_of(one) + "\n" for one in objects).encode("utf-8", "replace")


def array(objects: list[Any]) -> bytes:
    """All objects in one array."""
    return text_of(objects).encode("utf-8", "replace")


def _documents(objects: list[Any]) -> bytes:
    return "\n".join(text_of(one, indent=1) for one in objects).encode("utf-8", "replace")


def _blank_lines(objects: list[Any]) -> bytes:
    return b"\n \n" + lines(objects).replace(b"\n", b"\r\n\n")


def _one_line(objects: list[Any]) -> bytes:
    return b" ".join(lines(objects).splitlines())


_LAYOUTS: dict[str, Callable[[list[Any]], bytes]] = {
    "lines": lines,
    "array": array,
    "document": lambda objects: text_of(objects[0] if objects else {}, indent=1).encode(),
    "blank lines": _blank_lines,
    "documents": _documents,
    "no last newline": lambda objects: lines(objects).rstrip(b"\n"),
    "byte order mark": lambda objects: b"\xef\xbb\xbf" + lines(objects),
    "one line": _one_line,
    "utf-16": lambda objects: lines(objects).decode().encode("utf-16"),
}


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes after a few changes that know nothing of what they mean."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(found) + 1)
        end = min(len(found), at + draw.choice((0, 1, 1, 2, 8, 64)))
        kind = draw.random()
        if kind < 0.35:
            found[at:end] = draw.choice(_BITS)
        elif kind < 0.6:
            found[at:end] = draw.randbytes(end - at)
        elif kind < 0.75:
            del found[at:]
        elif kind < 0.9:
            found[at:at] = found[at:end] * draw.choice((1, 2, 30))
        else:
            del found[at:end]
    return bytes(found)


def packed(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """The bytes, packed or not, and the ending of a name that goes with it."""
    kind = draw.random()
    if kind < 0.82:
        return data, ""
    if kind < 0.9:
        made, ending = gzip.compress(data, 1, mtime=0), ".gz"
    elif kind < 0.97:
        made, ending = _zst(data), ".zst"
    else:
        half = len(data) // 2
        made = gzip.compress(data[:half], 1, mtime=0) + gzip.compress(data[half:], 1, mtime=0)
        ending = draw.choice((".gz", ".json", ""))
    if draw.random() < 0.05:
        made = gzip.compress(made, 1, mtime=0)
    return (damaged(made, draw) if draw.random() < 0.3 else made), ending


def _zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(1).compress(data)


def bomb(draw: random.Random) -> tuple[bytes, str]:
    """A small file that is large when it is unpacked."""
    filling = draw.choice((b"\0", b" ", b"\n", b"[", b"0", b'{"a":', b"{}\n"))
    size = draw.choice((1 << 20, 20 << 20, 300 << 20)) // len(filling)
    head = draw.choice((b"", b'{"log_probs_new": [[', b"["))
    return gzip.compress(head + filling * size, 1, mtime=0), ".gz"
