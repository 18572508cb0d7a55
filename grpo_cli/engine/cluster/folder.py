"""The folder of parts: on a disk that all workers see, or in a store."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO, Protocol

from grpo_cli.errors import InputError
from grpo_cli.records.open.address import is_remote

_FIRST = 16  # parts after which a list in a store is sent there, and then at each fifth more


class Log(Protocol):
    """Lines of a file that are there as soon as they are written, or soon after."""

    def add(self, line: bytes) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Folder(Protocol):
    """What parts and their manifest need of a folder."""

    def make(self) -> None:
        """Makes it where it is not there."""

    def names(self) -> list[str]:
        """The files in it."""
        ...  # pragma: no cover

    def read(self, name: str) -> bytes:
        """A file; nothing where it is not there."""
        ...  # pragma: no cover

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file; None where it is not there."""
        ...  # pragma: no cover

    def writing(self, name: str) -> Any:
        """A context with the stream of a file that is there, whole, when it is left well."""

    def log(self, name: str) -> Log:
        """A file that lines are added to; an older one is replaced."""
        ...  # pragma: no cover

    def remove(self, name: str) -> None:
        """Removes a file."""


def folder_of(path: str) -> Folder:
    """The folder at a path."""
    return _Store(path) if is_remote(path) else _Disk(path)


class _Disk:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def make(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return [path.name for path in self._path.iterdir()]

    def read(self, name: str) -> bytes:
        path = self._path / name
        return path.read_bytes() if path.exists() else b""

    def digest(self, name: str) -> str | None:
        with suppress(OSError), (self._path / name).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        return None

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        # Its name is known before it is there, so that Ctrl-C in between leaves nothing.
        written = self._path / f".{name}.{os.urandom(4).hex()}"
        try:
            with written.open("x+b") as stream:
                yield stream
            written.replace(self._path / name)
        finally:
            written.unlink(missing_ok=True)

    def log(self, name: str) -> Log:
        return _Lines((self._path / name).open("wb"))

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class _Lines:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def add(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


class _Store:
    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")

    def make(self) -> None:
        """There are no folders but by the names of files."""

    def names(self) -> list[str]:
        from grpo_cli.records.open import upload

        return upload.names(self._path)

    def read(self, name: str) -> bytes:
        with self._opened(name) as stream:
            return stream.read() if stream is not None else b""

    def digest(self, name: str) -> str | None:
        with self._opened(name) as stream:
            return None if stream is None else hashlib.file_digest(stream, "sha256").hexdigest()

    @contextmanager
    def _opened(self, name: str) -> Iterator[io.BufferedReader | None]:
        from grpo_cli.records.open import remote

        try:
            (file,) = remote.files(f"{self._path}/{name}")
        except InputError:
            yield None
            return
        with remote.opened(file, whole=True) as stream:
            yield stream

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        from grpo_cli.records.open import upload

        with TemporaryFile() as stream:
            yield stream
            upload.send(stream, f"{self._path}/{name}")

    def log(self, name: str) -> Log:
        return _Sent(self, name)

    def remove(self, name: str) -> None:
        from grpo_cli.records.open import upload

        upload.remove(f"{self._path}/{name}")


class _Sent:
    """Nothing can be added to a file in a store: all of it is sent again, seldom."""

    def __init__(self, store: _Store, name: str) -> None:
        self._store, self._name = store, name
        self._lines = TemporaryFile()  # noqa: SIM115 - closed with the list
        self._count, self._next = 0, 1

    def add(self, line: bytes) -> None:
        self._lines.write(line)
        self._count += 1
        if self._count >= self._next:
            self._send()
            self._next = max(_FIRST, self._count * 6 // 5)

    def _send(self) -> None:
        from grpo_cli.records.open import upload

        upload.send(self._lines, f"{self._store._path}/{self._name}")

    def close(self) -> None:
        self._send()
        self._lines.close()
