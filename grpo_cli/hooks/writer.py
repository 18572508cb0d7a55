"""Writes records to a file of JSON lines, in a thread of its own; one recording at a time."""

from __future__ import annotations

import atexit
import gzip
import json
import math
import os
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Self

import numpy as np
import orjson

from grpo_cli.bundle import KEY, digest, seal

try:
    import fcntl
except ImportError:  # a system without them has no locks
    fcntl = None  # type: ignore[assignment]

Make = Callable[[], Mapping[str, Any]]
"""Makes a record; called by the writer's thread, so it may hold nothing that others change."""

WAITING = 32
"""Records that may wait for the disk before the training waits for it too."""

_PATIENCE = 10.0  # seconds that a signal waits for the disk
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Writer:
    """Writes records to a file, one a line, and replaces what the file held.

    Each line is whole in the file before the next is begun, packed or not, so a killed run loses
    no more than what waited; SIGTERM and SIGHUP wait for that, where the training script handles
    them in no way of its own. A file that is deleted is made again. Whatever goes wrong ends the
    recording with one warning, never the training. A forked child has no part in the recording.

    Attributes:
        path: the file.
        closed: whether the recording has ended.
        written: how many records are in the file.
        run_id: the value of this name in each record, different for each recording.
    """

    def __init__(self, path: str | Path, *, sealed: bool = False) -> None:
        """Opens ``path``; a name that ends in ``.gz`` is packed.

        Args:
            path: where to.
            sealed: whether the file is a bundle: each line with the hash of the one before.

        Raises:
            OSError: where it cannot be written, or another recording writes to it.
        """
        self.path = Path(path)
        self.closed = False
        self.written = self._before = 0
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(4).hex()}"
        self._lines = Lines(self.path)
        self._packed = self.path.suffix == ".gz"
        self._previous: str | None = "" if sealed else None
        # Both can be used in a handler of a signal that comes while they are used.
        self._waiting: SimpleQueue[Make | Event | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(WAITING + 1):  # and the one that is written
            self._room.put(None)
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._thread = Thread(target=self._work, name="grpo-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        _handle_signals(self)

    def write(self, make: Make) -> None:
        """Has the thread make a record and write it; does nothing once closed."""
        if self._forked:
            self._leave(warns=True)
        if self._error is not None:
            self.close()
        if not self.closed:
            self._room.get()
            self._waiting.put(make)

    def flush(self) -> None:
        """Waits until everything is in the file; another recording may have it then."""
        if self._forked:
            self._leave()
        if not self.closed:
            self._wait()
            self._lines.release()
        if self._error is not None:
            self.close()

    def close(self) -> None:
        """Writes what waits and ends the recording; closing twice does nothing."""
        if self._forked:
            self._leave()
        if self.closed:
            return
        self.closed = True
        _OPEN.pop(id(self), None)
        self._waiting.put(None)
        self._thread.join()
        atexit.unregister(self.close)
        if self._error is not None:
            warn_of_end(self.path, self._error, self.written)
        elif self.written and self._lines.deleted:
            warn(self.path, f"deleted, with {self._kept}")
        self._lines.close()

    def fail(self, error: Exception) -> None:
        """Ends the recording because of ``error``; what was recorded before is written."""
        if self._error is None:
            self._wait()
            self._error = self._error or error
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _forked(self) -> bool:
        """Whether this is a child, which has no thread and shares the file with its parent."""
        return os.getpid() != self._process

    def _wait(self, seconds: float | None = None) -> None:
        """Waits until what was given to the thread is in the file."""
        done = Event()
        self._waiting.put(done)
        done.wait(seconds)

    def _leave(self, *, warns: bool = False) -> None:
        """Ends the recording of a child; what it inherited waits in the parent, too."""
        if warns and not self.closed:
            warn_of_end(self.path, RuntimeError("a forked process is not recorded"), 0)
        self.closed, self._error = True, None

    def _work(self) -> None:
        while (given := self._waiting.get()) is not None:
            if isinstance(given, Event):
                given.set()
                continue
            try:
                if self._error is None:
                    self._put(given())
            except BaseException as error:  # a thread that ends would have the training wait
                self._error = error
            self._room.put(None)

    def _put(self, record: Mapping[str, Any]) -> None:
        line = line_of({"run_id": self.run_id, **record})
        if self._previous is not None:
            line, self._previous = sealed(line, self._previous)
        # A member of its own for each line: what is written so far can always be read.
        if self._lines.add(gzip.compress(line, compresslevel=1, mtime=0) if self._packed else line):
            warn(self.path, f"deleted, with {self._kept}; the recording continues in a new file")
            self._before = self.written
        self.written += 1

    @property
    def _kept(self) -> str:
        return _records(self.written - self._before)


_OPEN: dict[int, Writer] = {}
"""The writers that a signal waits for."""


def _handle_signals(writer: Writer) -> None:
    """Has signals that would end the process wait for the writer.

    A handler of the training's own stays, and one that it sets later takes the place of this.
    """
    _OPEN[id(writer)] = writer
    if threading.current_thread() is threading.main_thread():  # no other may
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    """Writes what waits, and ends the process as the signal does."""
    for writer in list(_OPEN.values()):
        if not writer._forked:
            writer._wait(_PATIENCE)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def warn_of_end(path: Path, error: BaseException, written: int) -> None:
    """Warns that ``error`` ended the recording to ``path`` after so many records."""
    text = f"{_reason(error)}; the recording ends after {_records(written)}, the training continues"
    warn(path, text, level=4)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def warn(path: Path, message: str, level: int = 2) -> None:
    """Warns of what happened to a recording.

    A training script may make errors of warnings; this one goes to standard error then.
    """
    text = f"grpo: {path}: {message}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=level)
    except Warning:
        with suppress(OSError, ValueError):  # standard error may be closed
            sys.stderr.write(text + "\n")


def _reason(error: BaseException) -> str:
    """An error in short; what the system says of a file is enough by itself."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def of_rank(path: str | Path, rank: int, ranks: int) -> Path:
    """``dump.jsonl.gz`` → ``dump.rank3.jsonl.gz`` where there are several processes."""
    path = Path(path)
    if ranks == 1:
        return path
    packed = path.suffix if path.suffix == ".gz" else ""
    inner = path.with_suffix("") if packed else path
    return inner.with_name(f"{inner.stem}.rank{rank}{inner.suffix}{packed}")


def sealed(line: bytes, previous: str) -> tuple[bytes, str]:
    """A record's line as one of a bundle, and its hash; ``previous`` is that of the line before."""
    try:
        record = orjson.loads(line)
    except ValueError:  # NaN, or half a character
        record = json.loads(line)
    content = digest(record)
    found = seal(content, {**record.pop(KEY, {}), "open": True}, previous)
    whole = line_of(record | {KEY: found})
    return whole, found["sha256"]


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def line_of(record: Mapping[str, Any]) -> bytes:
    r"""The record's line. orjson alone would write null for what is not finite.

    A lone surrogate, as tokenizers make of half a character, is written as ``\ud83d``.
    """
    try:
        return orjson.dumps(_spelled(record), option=_OPTIONS)
    except TypeError:
        return orjson.dumps(_spelled(_in_utf_8(record)), option=_OPTIONS)


def _in_utf_8(value: Any) -> Any:
    """``value`` with strings that UTF-8 can express."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_in_utf_8(name): _in_utf_8(each) for name, each in value.items()}
    return [_in_utf_8(each) for each in value] if isinstance(value, list) else value


def _spelled(value: Any) -> Any:
    """``value`` with whatever is not finite in it spelled out, as Python's ``json`` does."""
    if isinstance(value, Mapping):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list):
        is_text = bool(value) and isinstance(value[0], str)
        return value if is_text else [_spelled(each) for each in value]
    if isinstance(value, np.ndarray):
        finite = value.dtype.kind != "f" or np.isfinite(value).all()
        return value if finite else orjson.Fragment(json.dumps(value.tolist()))
    if isinstance(value, float) and not math.isfinite(value):
        return orjson.Fragment(json.dumps(float(value)))
    return value


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
