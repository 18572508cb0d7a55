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
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from sys import intern
from typing import IO, NamedTuple

from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.step import Place
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.commands.trend.table import Steps, Table

_NEAR = 16
"""Steps in memory, at least; as many are put aside at once."""
_ROOM = 8 << 20
"""Bytes that they may take."""


class _Bundle(NamedTuple):
    """Where the sums of some steps are in the file."""

    place: int
    size: int


class Shelf:
    """Sums by step, in memory that does not grow with them.

    Args:
        values: the metrics of a step.
    """

    def __init__(self, values: Callable[[int, Sums], Mapping[str, float | None]]) -> None:
        whole = frozenset(name for name, one in METRICS.items() if one.whole)
        self._values, self._table = values, Table([*METRICS], whole)
        self._near: dict[int, Sums] = {}  # the latest last
        self._held = 0
        self._bundles: list[_Bundle] = []
        self._bundle_of: dict[int, int] = {}
        self._open: tuple[int, dict[int, Sums]] = (-1, {})
        self._file: IO[bytes] | None = None
        self._room = True

    def __len__(self) -> int:
        return len(self._table)

    def file(self, step: int) -> str | None:
        """The first file that has records of a step; None where there is none of it yet."""
        return self._table.file(step)

    def add(self, step: int, sums: Sums) -> None:
        """Adds the sums of records that follow."""
        if step in self._bundle_of:
            self._take_up(self._bundle_of[step])
        known = self._given(step) if step in self._near else None
        if known is None:
            known = sums
            sums.file = intern(sums.file)
            self._table.begin(step, sums.file, sums.key and intern(sums.key))
        else:
            known.merge(sums)
        self._keep(step, known)
        while len(self._near) >= 2 * _NEAR and self._room and self._held > _ROOM:
            self._put_aside([*islice(self._near, _NEAR)])

    def _keep(self, step: int, sums: Sums) -> None:
        self._near[step] = sums
        self._held += sums.size

    def _given(self, step: int) -> Sums:
        sums = self._near.pop(step)
        self._held -= sums.size
        return sums

    def _put_aside(self, steps: Sequence[int]) -> None:
        data = pickle.dumps({step: self._near[step] for step in steps}, pickle.HIGHEST_PROTOCOL)
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
        for step in steps:
            self._bundle_of[step] = len(self._bundles)
            self._table.fill(step, self._values(step, self._given(step)))
        self._bundles.append(_Bundle(place, len(data)))

    def _opened(self, number: int) -> dict[int, Sums]:
        """The sums of a bundle; the latest is kept, since neighbours are wanted together."""
        if self._open[0] != number:
            assert self._file is not None
            self._file.seek(self._bundles[number].place)
            self._open = number, pickle.loads(self._file.read(self._bundles[number].size))
        return self._open[1]

    def _take_up(self, number: int) -> None:
        """All those of a bundle, since more of its neighbours will be wanted."""
        for step, sums in self._opened(number).items():
            del self._bundle_of[step]
            self._keep(step, sums)
        self._open = -1, {}

    def steps(self) -> Steps:
        """The steps by number; their sums are given up, but for places."""
        for step, sums in self._near.items():
            self._table.fill(step, self._values(step, sums))
        near = {step: sums.worst for step, sums in self._near.items()}
        self._near = {}

        def worst(step: int) -> Mapping[str, Place]:
            return near[step] if step in near else self._opened(self._bundle_of[step])[step].worst

        return self._table.steps(worst)
