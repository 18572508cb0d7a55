"""Files and standard input → bytes, unpacked, in blocks of whole lines."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from grpo_cli.errors import InputError
from grpo_cli.records.open import remote
from grpo_cli.records.open.budget import ROW, UNLIMITED, VALUE, Budget
from grpo_cli.records.open.foreign import LOOKED_AT, UTF16_BOMS, foreign
from grpo_cli.records.open.remote import Address, Version

BLOCK = 4 << 20
NOTHING = "no records: the input is empty"
SHORTER = "the file became shorter while grpo read it"

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF8_BOM = b"\xef\xbb\xbf"
_STEP = 128 << 10  # unpacked at once
_ZSTD_STEP = 512  # read at once: four bytes may be 128 KiB, and the last frame must be whole
_MANY = 1 << 16  # lines of a block: each is an object of some 50 bytes more than its text
_BUFFER = 1 << 20


def shown(path: str) -> str:
    """A path as results and messages show it: in UTF-8, other bytes in hexadecimal."""
    return "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "backslashreplace")


def read_head(path: str) -> bytes:
    """The first bytes of a file, all of a small one; nothing of what can be read only once."""
    if isinstance(path, Address):
        return path.head
    try:
        if path == "-" or not Path(path).is_file():
            return b""
        with Path(path).open("rb", 0) as stream:
            return stream.read(remote.HEAD)
    except OSError:
        return b""  # whoever opens it to read all of it says what is wrong


def is_whole(head: bytes) -> bool:
    """Whether these first bytes of a file are all that it has."""
    return 0 < len(head) < remote.HEAD


@contextmanager
def unpacked(path: str, head: bytes = b"", most: int | None = None) -> Iterator[io.BufferedReader]:
    """The unpacked bytes of a file, or of standard input for ``-``.

    Raises:
        InputError: (without its source) for a file that cannot be opened, read or unpacked.
    """
    try:
        if is_whole(head):
            yield _unpacked(io.BufferedReader(io.BytesIO(head)), path, most)
            return
        with _opened(path) as stream:
            yield _unpacked(stream, path, most)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(reason(error)) from None


def opened(path: str, *, whole: bool = False) -> io.BufferedReader:
    """The bytes of a file, here or elsewhere; ``whole`` where all of them will be read."""
    if isinstance(path, Address):
        return remote.opened(path, whole=whole)
    return io.BufferedReader(Path(path).open("rb", 0), _BUFFER)


def version_of(path: str) -> Version:
    """The version that a file has: of a remote one, when the run began."""
    if isinstance(path, Address):
        return path.version
    about = Path(path).stat()
    return Version(about.st_size, str(about.st_mtime_ns))


def read_bytes(path: str, start: int, end: int) -> bytes:
    """Some bytes of a file, here or elsewhere; fewer where it ends before."""
    if isinstance(path, Address):
        return remote.read_many(path, start, end)
    with Path(path).open("rb") as stream:
        stream.seek(start)
        return stream.read(end - start)


@contextmanager
def _opened(path: str) -> Iterator[io.BufferedReader]:
    if path != "-":
        with opened(path, whole=True) as file:
            size = 0 if isinstance(path, Address) else os.fstat(file.fileno()).st_size
            yield file
            if size and file.tell() < size and not file.peek(1):  # an end that came early
                raise InputError(SHORTER)
        return
    if sys.stdin is None:
        raise InputError("standard input is closed")
    stdin: Any = sys.stdin.buffer
    if hasattr(stdin, "peek"):
        yield stdin
        return
    stream = io.BufferedReader(stdin)
    try:
        yield stream
    finally:
        stream.detach()  # else standard input is closed with it


def _unpacked(stream: io.BufferedReader, path: str, most: int | None) -> io.BufferedReader:
    head = stream.peek()
    if head.startswith((_GZIP, _ZSTD)):
        budget = Budget.of(path, most)
        packed = io.BufferedReader(Pieces(_counted(stream, budget)), _STEP)
        if head.startswith(_ZSTD):
            pieces = _unzstd(packed)
        else:
            pieces = iter(partial(gzip.GzipFile(fileobj=packed).read1, _STEP), b"")
        return io.BufferedReader(Pieces(_within(budget, pieces), budget), _BUFFER)
    if message := foreign(head[:LOOKED_AT], path):
        raise InputError(message)
    if head.startswith(UTF16_BOMS):
        raise InputError("expected UTF-8, got UTF-16; convert it with iconv -f UTF-16 -t UTF-8")
    return stream


def plain(head: bytes) -> bool:
    """Whether a file that begins so can be read at any place: not packed, and without a mark."""
    return not head.startswith((_GZIP, _ZSTD, _UTF8_BOM, *UTF16_BOMS))


def budget_of(stream: io.BufferedReader) -> Budget:
    """How long the lines of a stream may be, and how many values they may have."""
    return stream.raw.budget if isinstance(stream.raw, Pieces) else UNLIMITED


def _counted(stream: BinaryIO, budget: Budget) -> Iterator[bytes]:
    """The bytes of a stream; the budget of a pipe grows with what was read of it."""
    size = 0
    while piece := stream.read(_STEP):
        size += len(piece)
        budget.size = max(budget.size, size)
        yield piece


def _within(budget: Budget, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces, as many as the budget allows."""
    size = rows = 0
    for piece in pieces:
        size, rows = size + len(piece), rows + piece.count(b"\n")
        budget.check(size, "bytes, unpacked,", 1)
        budget.check(rows, "lines", ROW, ahead=16)
        yield piece


class Pieces(io.RawIOBase):
    """Bytes that come piece by piece, as a file."""

    def __init__(self, pieces: Iterator[bytes], budget: Budget = UNLIMITED) -> None:
        self.budget = budget
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:  # noqa: D102
        return True

    def readinto(self, room: Any) -> int:  # noqa: D102
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(room), len(self._rest))
        room[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise InputError("reading .zst needs zstandard: pip install zstandard") from None
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    try:
        while packed := stream.read(_ZSTD_STEP):
            while packed:
                if unpacker.eof:  # one frame follows another
                    unpacker = zstandard.ZstdDecompressor().decompressobj()
                yield unpacker.decompress(packed)
                packed = unpacker.unused_data
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            raise InputError("zstd --long packed it; pack it again without --long") from None
        raise InputError("the zstd data are corrupt") from None
    if not unpacker.eof:
        raise EOFError


_SAMPLES = "; the samples are in the folder of the project, and are not installed: run it there"


def reason(error: Exception) -> str:
    """Why a file cannot be read, in short."""
    if isinstance(error, FileNotFoundError):
        if Path(path := str(error.filename)).is_symlink():
            return f"is a link to {shown(str(Path(path).readlink()))}, which does not exist"
        is_sample = path.startswith("samples/")
        return f"no such file{_SAMPLES if is_sample else ''}"
    if isinstance(error, IsADirectoryError):
        return "is a directory; name the files in it"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, EOFError):
        return "the compressed data end too early; is the file cut off?"
    if isinstance(error, gzip.BadGzipFile | zlib.error):
        return "the gzip data are corrupt"
    return (getattr(error, "strerror", None) or str(error)).lower()


def is_empty(path: str) -> bool:
    """Whether a file has no bytes."""
    error = unopened(path)
    return error is not None and error.message == NOTHING


def unopened(path: str) -> InputError | None:
    """Why nothing can be read of a file that is here; None where it begins, or only reading tells.

    What can be read only once (standard input, a pipe) is not touched.
    """
    if path == "-" or isinstance(path, Address):
        return None
    try:
        if Path(path).exists() and not Path(path).is_file():
            return None
        with Path(path).open("rb") as file:
            return None if file.read(1) else InputError(NOTHING, source=shown(path))
    except OSError as error:
        return InputError(reason(error), source=shown(path))


def blocks(
    stream: BinaryIO, size: int = BLOCK, limit: Budget = UNLIMITED
) -> Iterator[tuple[int, list[bytes]]]:
    """Cuts bytes into lines, and these into blocks.

    Args:
        stream: the bytes. A UTF-8 byte order mark at the very start is dropped.
        size: what a block has at least, in bytes, but for the last; one of many lines has fewer.
        limit: how long a line may be, and how many values it may have.

    Yields:
        The 1-based number of the first line, and lines without their ends.

    Raises:
        InputError: for a line longer than the limit.
    """
    number, fault = 1, None
    longest, unchecked = limit.line, limit.limit // VALUE
    while fault is None:
        lines: list[bytes] = []
        room = size
        try:
            while room > 0 and len(lines) < _MANY and (line := stream.readline(longest)):
                room -= len(line)
                if len(line) == longest and not line.endswith(b"\n"):
                    raise InputError(limit.too_long(), line=number + len(lines))
                line = line.removesuffix(b"\n")
                if len(line) > unchecked:
                    limit.check_line(line, number + len(lines))
                lines.append(line if lines or number > 1 else line.removeprefix(_UTF8_BOM))
        except (OSError, EOFError, zlib.error, InputError) as error:
            fault = error
        if lines:
            yield number, lines
            number += len(lines)
        elif fault is None:
            return
    raise fault


def split(data: bytes) -> list[bytes]:
    """The lines of a text, without their ends."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
