"""A run over files: iterate it for the output, then read its totals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from grpo_cli.engine.totals import Totals
from grpo_cli.engine.worker import Encode, Outcome, Task
from grpo_cli.errors import InputError
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.records import PLAIN, Piece, Reading, Source
from grpo_cli.records.open.streams import BLOCK
from grpo_cli.variants.plan import Plan

T = TypeVar("T")
Progress = Callable[[int, int], None]

_WORTH_IT = 4
"""Blocks that an input must have for worker processes to be started unasked."""


@dataclass(frozen=True)
class _Measured:
    """The first pass of a task, as a function that travels between processes."""

    task: Task
    reading: Reading

    def __call__(self, piece: Piece) -> ExactMoments:
        return self.task.measure(self.reading.handfuls(piece, {}))


@dataclass(frozen=True)
class _Worked:
    """The evaluation of a task, likewise."""

    task: Task
    reading: Reading

    def __call__(self, piece: Piece) -> Outcome:
        told: dict[str, None] = {}
        outcome = self.task.work(self.reading.handfuls(piece, told))
        outcome.told = told
        return outcome


class Evaluation:
    """Evaluates files in order, in flat memory.

    Iterating yields the output pieces of stretches of records, one piece per record, as they are
    computed, and raises the ``InputError`` at which the run stopped after everything before it.
    The output is the same to the byte whatever ``jobs`` and ``block_bytes`` are.

    Args:
        paths: files; ``-`` is standard input.
        plan: which objective.
        encode: a breakdown's bytes, one piece per record; None when only totals are wanted.
        skip: whether to go on behind records that cannot be evaluated.
        reading: how the files become records.
        jobs: worker processes; None: the cores available where the input is large, else one.
        progress: called with the bytes and tokens of each block that is done.
        block_bytes: text that is read, or goes to a worker, at once.
    """

    def __init__(
        self,
        paths: Sequence[str],
        plan: Plan,
        *,
        encode: Encode | None,
        skip: bool,
        reading: Reading = PLAIN,
        jobs: int | None = None,
        progress: Progress | None = None,
        block_bytes: int = BLOCK,
    ) -> None:
        self._sources = [Source.of(path) for path in paths]
        self._task = Task(plan, encode, skip)
        self._reading = reading
        self._jobs = jobs
        self._progress = progress
        self._block_bytes = block_bytes
        self._totals = Totals(plan.batch)
        self.skipped: list[InputError] = []
        self._notes: dict[str, None] = {}
        self._told: dict[str, None] = {}

    def __iter__(self) -> Iterator[list[bytes]]:
        if not self._two_passes:
            yield from self._evaluate(self._task)
            return
        import tempfile  # slow to import, and rarely needed

        with tempfile.TemporaryDirectory(prefix="grpo-") as folder:
            self._spool(Path(folder))
            moments = ExactMoments()
            for _, part in self._map(_Measured(self._task, self._reading)):
                moments.merge(part)
            yield from self._evaluate(replace(self._task, moments=moments))

    def _evaluate(self, task: Task) -> Iterator[list[bytes]]:
        for piece, outcome in self._map(_Worked(task, self._reading)):
            self._totals.merge(outcome.totals)
            self.skipped += outcome.skipped
            self._notes |= outcome.notes
            self._told |= outcome.told
            if self._progress is not None:
                self._progress(piece.size, outcome.totals.tokens)
            yield outcome.pieces
            if outcome.error is not None:
                raise outcome.error
        if self._reading.selects and not self._totals.records and not self.skipped:
            raise self._reading.nothing()

    @property
    def _two_passes(self) -> bool:
        """Whether the objective needs statistics of the whole input before it can begin."""
        plan = self._task.plan
        return plan.batch == "input" and plan.wants_moments

    def _spool(self, folder: Path) -> None:
        """Keeps standard input in a file, to be read twice."""
        import shutil

        for number, source in enumerate(self._sources):
            if source.path == "-":
                kept = folder / "stdin"
                with kept.open("wb") as stream:
                    shutil.copyfileobj(sys.stdin.buffer, stream)
                self._sources[number] = Source(source.name, str(kept))
                self._notes["standard input was kept in a temporary file: two passes"] = None

    def _map(self, work: Callable[[Piece], T]) -> Iterator[tuple[Piece, T]]:
        """``work`` on every block, in order; where reading fails, on all that came before."""
        faults: list[Exception] = []
        yield from self._shared_out(work, _before(self._blocks(), faults))
        if faults:
            raise faults[0]

    def _shared_out(
        self, work: Callable[[Piece], T], blocks: Iterator[Piece]
    ) -> Iterator[tuple[Piece, T]]:
        """The same in this process or in several."""
        if self._jobs is None:
            beginning = list(islice(blocks, _WORTH_IT))
            blocks = chain(beginning, blocks)
            if len(beginning) < _WORTH_IT:
                return self._serially(work, blocks)
        if self._jobs == 1:
            return self._serially(work, blocks)
        from grpo_cli.engine.pool import cores, in_order  # processes are slow to import too

        jobs = self._jobs or cores()
        return self._serially(work, blocks) if jobs == 1 else in_order(work, blocks, jobs)

    def _serially(
        self, work: Callable[[Piece], T], blocks: Iterator[Piece]
    ) -> Iterator[tuple[Piece, T]]:
        return ((block, work(block)) for block in blocks)

    def _blocks(self) -> Iterator[Piece]:
        apart = self._jobs != 1
        for source in self._sources:
            yield from self._reading.pieces(source, self._block_bytes, apart=apart)

    @property
    def total(self) -> dict[str, object]:
        """The batch's numbers by name, in the order of ``TOTAL_FIELDS``."""
        return self._totals.row()

    @property
    def signature(self) -> str:
        """The signature of the batch."""
        return self._totals.signature()

    @property
    def notes(self) -> list[str]:
        """What is told once."""
        return list(self._told | self._notes)


def _before(pieces: Iterator[Piece], faults: list[Exception]) -> Iterator[Piece]:
    """The pieces up to where reading fails, since some are read ahead; why goes to ``faults``."""
    try:
        yield from pieces
    except Exception as fault:
        faults.append(fault)
