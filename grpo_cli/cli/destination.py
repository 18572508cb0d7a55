"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, cast

from grpo_cli.errors import UsageError


@contextmanager
def destination(path: str | None) -> Iterator[BinaryIO]:
    """The stream to write to.

    A file is written beside its place and renamed when the block ends well; otherwise nothing of
    it is left, and a file that was there before stays as it was.

    Raises:
        UsageError: when the file cannot be written.
    """
    if path is None or path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        place = Path(path).resolve()
        if place.exists() and not place.is_file():
            with place.open("wb") as stream:
                yield stream
            return
        with _renamed(place) as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _renamed(place: Path) -> Iterator[BinaryIO]:
    with NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", delete=False) as stream:
        beside = Path(stream.name)
        try:
            yield cast(BinaryIO, stream)
            stream.close()
            beside.chmod(_mode(place))
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)


def _mode(place: Path) -> int:
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
