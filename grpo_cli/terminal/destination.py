"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from grpo_cli.errors import GrpoError, UsageError


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
            if sys.stdout is None:
                raise GrpoError("standard output is closed")
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise UsageError(f"{flag}: cannot write {path}: its links go round in a loop")
    if place.exists() and not place.is_file():  # a device, a pipe
        with naming(path), _opened(path, flag, lambda: place.open("wb")) as stream:
            yield stream
        return
    with naming(path), _renamed(path, flag, place) as stream:
        yield stream


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Puts the place into an error of writing, which does not know it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = place
        raise


def _opened(path: str, flag: str, attempt: Callable[[], BinaryIO]) -> BinaryIO:
    try:
        return attempt()
    except OSError as error:
        raise UsageError(f"{flag}: cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _renamed(path: str, flag: str, place: Path) -> Iterator[BinaryIO]:
    # Its name is known before it is there, so that Ctrl-C in between leaves nothing.
    written = place.parent / f".{place.name}.{os.urandom(4).hex()}"
    try:
        with _opened(path, flag, lambda: open(written, "xb", opener=_private)) as stream:
            yield stream
            stream.close()
            written.chmod(_mode(place))
            written.replace(place)
    finally:
        with suppress(OSError):  # most often it has another name by now
            written.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _mode(place: Path) -> int:
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
