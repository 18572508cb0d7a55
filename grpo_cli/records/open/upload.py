"""Files written to object stores, through fsspec: each is there when it is whole, or not at all."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, BinaryIO, cast

from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.records.open import remote

_COPIED = 1 << 20


@contextmanager
def uploading(path: str, flag: str = "--output") -> Iterator[BinaryIO]:
    """The stream of a file in a store. What is sent becomes a file when the block ends well.

    Stores have that as an upload in many parts that is completed, or given up, at the end.

    Raises:
        UsageError: where nothing can be written there.
        GrpoError: where the store fails.
    """
    files, place = _writable(path, flag)
    with _telling(path):
        file = files.open(place, "wb", autocommit=False)
    try:
        stream = io.BufferedWriter(cast(io.RawIOBase, _Sending(file, path)), _COPIED)
        yield cast(BinaryIO, stream)
        stream.flush()
        with _telling(path):
            file.close()
            file.commit()
    except BaseException:
        with suppress(Exception):
            file.discard()
        file.closed = True  # or closing it would complete what was given up
        raise
    finally:
        with suppress(AttributeError, ValueError):  # fsspec keeps it for a transaction
            files.transaction.files.remove(file)


def send(stream: IO[bytes], path: str) -> None:
    """Has a file in a store be what a stream holds, which is read from its beginning.

    Raises:
        GrpoError: where the store fails again and again.
    """

    def attempt() -> None:
        stream.seek(0)
        with uploading(path) as far:
            shutil.copyfileobj(stream, far, _COPIED)

    try:
        remote.patiently(attempt, path)
    finally:
        stream.seek(0, io.SEEK_END)


def names(folder: str) -> list[str]:
    """The files in a folder of a store; none where there is no folder."""
    files, place = remote.filesystem(folder)

    def attempt() -> list[str]:
        try:
            found = files.ls(place, detail=True)
        except FileNotFoundError:
            return []
        return [one["name"].rpartition("/")[2] for one in found if one["type"] == "file"]

    return remote.patiently(attempt, folder)


def is_folder(path: str) -> bool:
    """Whether there is something below a path."""
    files, place = remote.filesystem(path)
    return bool(remote.patiently(lambda: files.isdir(place), path))


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    files, place = remote.filesystem(path)

    def attempt() -> None:
        with suppress(FileNotFoundError):
            files.rm_file(place)

    remote.patiently(attempt, path)


def _writable(path: str, flag: str) -> tuple[Any, str]:
    """What speaks to a store, and the place in it; the container has to be there already.

    Raises:
        UsageError: where it is not, or nothing speaks to it.
    """
    try:
        files, place = remote.filesystem(path)
        container = place.partition("/")[0]
        there = not container or remote.patiently(lambda: files.exists(container), path)
    except InputError as error:
        raise UsageError(f"{flag}: cannot write {path}: {error.message}") from None
    if not there:
        raise UsageError(f"{flag}: cannot write {path}: {container} does not exist")
    return files, place


@contextmanager
def _telling(path: str) -> Iterator[None]:
    """What goes wrong with a store is one line."""
    try:
        yield
    except PermissionError:
        raise UsageError(f"cannot write {path}: no permission") from None
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise GrpoError(f"cannot write {path}: {reason}") from None


class _Sending(io.RawIOBase):
    """What fsspec writes to, with errors that name the file."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _telling(self._path):
            self._file.write(bytes(data))
        return len(data)
