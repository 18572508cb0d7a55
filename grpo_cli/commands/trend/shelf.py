"""The sums of all steps of a run: the latest in memory, the others in a file until they are wanted.

A step is done when later ones are read, as a rule: its metrics are computed then, and its sums put
aside. Where more of its records come (another rank's file), they are taken up again, so that
nothing depends on the order in which a run was written.
"""

from __future__ import annotations

import errno
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterator
from sys import intern
from typing import IO, Generic, NamedTuple, TypeVar

from grpo_cli.commands.trend.sums import Sums

T = TypeVar("T")
_NEAR = 16
"""Steps in memory."""


class _Aside(NamedTuple, Generic[T]):
    """A step that was put aside: what was made of it, and where its sums are."""

    made: T
    place: int
    size: int


class Shelf(Generic[T]):
    """Sums by step, in memory that does not grow with them.

    Args:
        make: what is kept of a step's sums in the end.

    Attributes:
        files: step → the first file that has records of it.
    """

    def __init__(self, make: Callable[[int, Sums], T]) -> None:
        self._make = make
        self._near: dict[int, Sums] = {}  # the latest last
        self._aside: dict[int, _Aside[T]] = {}
        self._file: IO[bytes] | None = None
        self._room = True
        self.files: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.files)

    def add(self, step: int, sums: Sums) -> None:
        """Adds the sums of records that follow."""
        known = self._near.pop(step, None)
        if known is None and step in self._aside:
            known = self._taken_up(self._aside.pop(step))
        if known is None:
            known = sums
            self.files[step] = sums.file = intern(sums.file)
        else:
            known.merge(sums)
        self._near[step] = known
        while len(self._near) > _NEAR and self._room:
            oldest = next(iter(self._near))
            self._put_aside(oldest, self._near[oldest])

    def _put_aside(self, step: int, sums: Sums) -> None:
        data = pickle.dumps(sums, pickle.HIGHEST_PROTOCOL)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed with it
                    prefix="grpo-", buffering=0
                )
                weakref.finalize(self, self._file.close)
            place = self._file.seek(0, 2)
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, "no room")
        except OSError:  # the rest stays in memory
            self._room = False
            return
        self._aside[step] = _Aside(self._make(step, sums), place, len(data))
        del self._near[step]

    def _taken_up(self, aside: _Aside[T]) -> Sums:
        assert self._file is not None
        self._file.seek(aside.place)
        found: Sums = pickle.loads(self._file.read(aside.size))
        return found

    def made(self) -> Iterator[tuple[int, T]]:
        """What was made of each step, by number; its sums are given up."""
        for step in sorted(self.files):
            if step in self._aside:
                yield step, self._aside.pop(step).made
            else:
                yield step, self._make(step, self._near.pop(step))
        if self._file is not None:
            self._file.close()
