"""Records → a file of JSON lines, written by a thread beside the training."""

from __future__ import annotations

import atexit
import gzip
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, Self

import orjson

Make = Callable[[], Mapping[str, Any]]
"""Makes a record; called by the writer's thread, so it may hold nothing that others change."""

WAITING = 32
"""Records that may wait for the disk before the training waits for it too."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


class Writer:
    """Writes records to a file, one a line, and replaces what the file held.

    Each line is whole on disk before the next is begun, packed or not, so a killed run loses no
    more than what waited. A record that cannot be made or written ends the recording with a
    warning, never the training.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens ``path``; a name that ends in ``.gz`` is packed."""
        self.path = Path(path)
        self.closed = False
        self._file = self.path.open("wb")
        self._packed = self.path.suffix == ".gz"
        self._waiting: Queue[Make | None] = Queue(WAITING)
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, name="grpo-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, make: Make) -> None:
        """Has the thread make a record and write it; does nothing once closed."""
        if self._error is not None:
            self.close()
        if not self.closed:
            self._waiting.put(make)

    def flush(self) -> None:
        """Waits until everything is in the file."""
        if not self.closed:
            self._waiting.join()
        if self._error is not None:
            self.close()

    def close(self) -> None:
        """Writes what waits and ends the recording; closing twice does nothing."""
        if self.closed:
            return
        self.closed = True
        self._waiting.put(None)
        self._thread.join()
        atexit.unregister(self.close)
        with suppress(OSError):  # what could not be written is what the warning is about
            self._file.close()
        if self._error is not None:
            said = f"grpo: {self.path}: {self._error}; recording ends, training goes on"
            warnings.warn(said, RuntimeWarning, stacklevel=3)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while (make := self._waiting.get()) is not None:
            try:
                if self._error is None:
                    self._put(make())
            except Exception as error:
                self._error = error
            self._waiting.task_done()

    def _put(self, record: Mapping[str, Any]) -> None:
        line = orjson.dumps(record, option=_OPTIONS)
        # A member of its own for each line: what is written so far can always be read.
        self._file.write(gzip.compress(line, compresslevel=1, mtime=0) if self._packed else line)
        self._file.flush()


def of_rank(path: str | Path, rank: int, ranks: int) -> Path:
    """``dump.jsonl.gz`` → ``dump.rank3.jsonl.gz`` where there are several processes."""
    path = Path(path)
    if ranks == 1:
        return path
    packed = path.suffix if path.suffix == ".gz" else ""
    inner = path.with_suffix("") if packed else path
    return inner.with_name(f"{inner.stem}.rank{rank}{inner.suffix}{packed}")
