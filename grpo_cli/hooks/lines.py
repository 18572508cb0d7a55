"""A file of whole lines, which one recording writes at a time."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without them has no locks
    fcntl = None  # type: ignore[assignment]

_OURS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Lines:
    """Replaces what the file held, then adds line after line.

    Nothing is buffered here: a line is whole on disk, or not there. The lock holds while a line
    may come, against other recordings of this process and of others.
    """

    def __init__(self, path: Path) -> None:
        """Opens ``path``.

        Raises:
            OSError: where it cannot be written, or another recording writes to it.
        """
        self._path = path.absolute()
        self._open(0)

    def _open(self, flags: int) -> None:
        self._file = os.open(self._path, _OURS | flags, 0o666)
        self._locked = False
        self._size = 0
        try:
            self._lock()
            self._plain = stat.S_ISREG(os.fstat(self._file).st_mode)
            if self._plain:
                os.ftruncate(self._file, 0)
        except BaseException:
            self.close()
            raise

    @property
    def deleted(self) -> bool:
        """Whether the file has no name any more."""
        return self._plain and not os.fstat(self._file).st_nlink

    def add(self, line: bytes) -> bool:
        """Writes a line, or nothing of it.

        Returns:
            Whether the file was deleted before, so that the line is the first of a new one.

        Raises:
            OSError: where it cannot be written, or others write to the file.
        """
        if deleted := self.deleted:
            self.close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open(os.O_EXCL)
        self._lock()
        if self._plain and not deleted and os.fstat(self._file).st_size != self._size:
            raise OSError("another process wrote to it meanwhile")
        self._write(line)
        return deleted

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:
            if self._plain:
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def release(self) -> None:
        """Lets another recording have the file, until there is a line again."""
        if self._locked:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may hold the file open
            self._locked = False

    def close(self) -> None:
        """Closes the file."""
        with suppress(OSError):
            self.release()
        with suppress(OSError):
            os.close(self._file)
        self._file = -1

    def _lock(self) -> None:
        if self._locked or fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._locked = True
        except BlockingIOError:
            reason = "another recording writes to it; give each recording its own path"
            raise OSError(reason) from None
        except OSError:
            pass  # some file systems have no locks
