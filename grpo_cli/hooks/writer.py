"""Writes records to a file of JSON lines, in a thread of its own."""

from __future__ import annotations

import atexit
import gzip
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, Self

import numpy as np
import orjson

from grpo_cli.hooks import lost
from grpo_cli.hooks.lines import Lines

Make = Callable[[], Mapping[str, Any]]
"""Makes a record; called by the writer's thread, so it may hold nothing that others change."""

WAITING = 32
"""Records that may wait for the disk before the training waits for it too."""


class Writer:
    """Writes records to a file, one a line, and replaces what the file held.

    Each line is whole on disk before the next is begun, packed or not, so a killed run loses no
    more than what waited. Whatever goes wrong ends the recording with one warning, never the
    training. A forked child has no part in the recording.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens ``path``; a name that ends in ``.gz`` is packed.

        Raises:
            OSError: where it cannot be written, or another recording writes to it.
        """
        self.path = Path(path)
        self.closed = False
        self.written = 0
        self._lines = Lines(self.path)
        self._packed = self.path.suffix == ".gz"
        self._waiting: Queue[Make | None] = Queue(WAITING)
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._thread = Thread(target=self._work, name="grpo-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, make: Make) -> None:
        """Has the thread make a record and write it; does nothing once closed."""
        if self._forked:
            self._leave(said=True)
        if self._error is not None:
            self.close()
        if not self.closed:
            self._waiting.put(make)

    def flush(self) -> None:
        """Waits until everything is in the file; another recording may have it then."""
        if self._forked:
            self._leave()
        if not self.closed:
            self._waiting.join()
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
        self._waiting.put(None)
        self._thread.join()
        atexit.unregister(self.close)
        self._lines.close()
        if self._error is not None:
            lost.warn(self.path, self._error, self.written)

    def fail(self, error: Exception) -> None:
        """Ends the recording because of ``error``; what was recorded before is written."""
        if self._error is None:
            self._waiting.join()
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

    def _leave(self, *, said: bool = False) -> None:
        """Ends the recording of a child; what it inherited waits in the parent, too."""
        if said and not self.closed:
            lost.warn(self.path, RuntimeError("a forked process is not recorded"), 0)
        self.closed, self._error = True, None

    def _work(self) -> None:
        while (make := self._waiting.get()) is not None:
            try:
                if self._error is None:
                    self._put(make())
            except BaseException as error:  # a thread that ends would have the training wait
                self._error = error
            self._waiting.task_done()

    def _put(self, record: Mapping[str, Any]) -> None:
        line = line_of(record)
        # A member of its own for each line: what is written so far can always be read.
        self._lines.add(gzip.compress(line, compresslevel=1, mtime=0) if self._packed else line)
        self.written += 1


def of_rank(path: str | Path, rank: int, ranks: int) -> Path:
    """``dump.jsonl.gz`` → ``dump.rank3.jsonl.gz`` where there are several processes."""
    path = Path(path)
    if ranks == 1:
        return path
    packed = path.suffix if path.suffix == ".gz" else ""
    inner = path.with_suffix("") if packed else path
    return inner.with_name(f"{inner.stem}.rank{rank}{inner.suffix}{packed}")


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def line_of(record: Mapping[str, Any]) -> bytes:
    """The record's line. orjson alone would write null for what is not finite."""
    return orjson.dumps(_spelled(record), option=_OPTIONS)


def _spelled(value: Any) -> Any:
    """``value`` with whatever is not finite in it spelled out, as Python's ``json`` does."""
    if isinstance(value, Mapping):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list):
        return value if _of_words(value) else [_spelled(each) for each in value]
    if isinstance(value, np.ndarray):
        return value if _all_finite(value) else orjson.Fragment(json.dumps(value.tolist()))
    if isinstance(value, float) and not math.isfinite(value):
        return orjson.Fragment(json.dumps(float(value)))
    return value


def _of_words(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], str)


def _all_finite(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())
