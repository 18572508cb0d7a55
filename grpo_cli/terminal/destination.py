"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

from grpo_cli.errors import GrpoError, UsageError

try:
    import fcntl
except ImportError:  # a system without them has no locks
    fcntl = None  # type: ignore[assignment]

_KEPT: list[TextIOWrapper] = []


def standard_output() -> TextIO | None:
    """The stream of the results; None where the command was started without one."""
    return _KEPT[0] if _KEPT else sys.stdout


def keep_standard_output() -> None:
    """Keeps standard output for the results alone: what libraries print goes to standard error.

    Processes that are started from here on inherit standard error in its place.
    """
    stream = sys.stdout
    try:
        if _KEPT or stream.fileno() != 1:
            return
        stream.flush()
        results = os.fdopen(os.dup(1), "wb")
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return
    other = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else 2
    os.dup2(other, 1)
    _KEPT.append(TextIOWrapper(results, stream.encoding, stream.errors))
    sys.stdout = sys.stderr


@contextmanager
def destination(path: str | None, flag: str = "--output") -> Iterator[BinaryIO]:
    """The stream to write to; ``flag`` is where the path was given.

    A file is written under another name and renamed when the block ends well; otherwise nothing of
    it is left, and a file that was there before stays as it was.

    Raises:
        UsageError: when the file cannot be written.
        GrpoError: where the command was started without a standard output.
    """
    if path is None or path == "-":
        with naming("standard output"):
            results = standard_output()
            if results is None:
                raise GrpoError("standard output is closed")
            yield results.buffer
            results.buffer.flush()
        return
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise UsageError(f"{flag}: cannot write {path}: its links form a loop")
    if place.exists() and not place.is_file():  # a device, a pipe
        with naming(path), _opened(path, flag, lambda: place.open("wb")) as stream:
            yield stream
        return
    with naming(path), _renamed(path, flag, place) as stream:
        yield stream


replaced: dict[str, int] = {}
"""A path → the bytes of the file whose place the one written there took."""

_NOT_OF_THE_PLACE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Puts the place into an error of writing, which does not know it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in _NOT_OF_THE_PLACE:
            error.filename = place
        raise


def _opened(path: str, flag: str, attempt: Callable[[], BinaryIO]) -> BinaryIO:
    try:
        return attempt()
    except OSError as error:
        raise UsageError(f"{flag}: cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _renamed(path: str, flag: str, place: Path) -> Iterator[BinaryIO]:
    if place.exists() and not (os.access(place, os.W_OK) and place.stat().st_mode & 0o222):
        raise UsageError(f"{flag}: cannot write {path}: it is read-only")
    _remove_abandoned(place)
    # Its name is known before it is there, so that Ctrl-C in between leaves nothing.
    written = place.parent / f"{_unfinished(place)}{os.urandom(4).hex()}"
    try:
        with _opened(path, flag, lambda: open(written, "xb", opener=_private)) as stream:
            yield stream
            stream.close()
            written.chmod(_mode(place))
            if place.exists():
                replaced[path] = place.stat().st_size
            written.replace(place)
    finally:
        with suppress(OSError):  # most often it has another name by now
            written.unlink()


def _unfinished(place: Path) -> str:
    """What the names of files that are to become ``place`` begin with; a name has 255 bytes."""
    name = os.fsencode(place.name)[: 255 - len("..12345678")]
    return f".{os.fsdecode(name)}."


def _remove_abandoned(place: Path) -> None:
    """Removes what a command that was killed left of a file; one that runs holds a lock."""
    begin = _unfinished(place)
    for one in os.scandir(place.parent) if place.parent.is_dir() else ():
        if one.name.startswith(begin) and _RANDOM.fullmatch(one.name.removeprefix(begin)):
            with suppress(OSError), Path(one.path).open("r+b") as stream:
                _lock(stream.fileno())
                Path(one.path).unlink()


_RANDOM = re.compile("[0-9a-f]{8}")


def _lock(file: int) -> None:
    """Locks a file until it is closed.

    Raises:
        OSError: where somebody else does, or the file system has no locks.
    """
    if fcntl is None:
        raise OSError("no locks")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _private(path: str, flags: int) -> int:
    file = os.open(path, flags, 0o600)
    with suppress(OSError):
        _lock(file)
    return file


def _mode(place: Path) -> int:
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
