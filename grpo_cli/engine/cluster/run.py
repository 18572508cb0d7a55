"""A fold on Ray: what ``Reader.run`` does where ``--on`` says so.

What is held here does not grow with the input: portions are made as they are needed, a bounded
number of tasks is under way, and bytes stay on the nodes that read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from grpo_cli.engine.accumulator import A, FoldPiece
from grpo_cli.engine.cluster.parts import PartFolder
from grpo_cli.engine.cluster.session import Ref, Session, session
from grpo_cli.engine.cluster.tasks import Files, Job, Portion, Result, portions, versions
from grpo_cli.errors import GrpoError
from grpo_cli.records import Source
from grpo_cli.records.open.blocks import Range
from grpo_cli.records.open.remote import Address

_SIZE = 64 << 20
"""Bytes of a task: half a second of work, against a millisecond that Ray takes to give it."""
_ROWS = 8 << 20
"""Bytes of a task whose rows come here: they are several times as many, and wait for their turn."""


def on_ray(
    on: str,
    work: FoldPiece[A],
    sources: Sequence[Source],
    *,
    jobs: int | None,
    size: int | None,
    together: bool,
    part_folder: PartFolder | None = None,
) -> Iterator[Result]:
    """The results of ``work`` on every portion of the files, in order.

    Args:
        on: which Ray, as ``--on`` names it.
        jobs: how many tasks run at once; None for as many as there are cores.
        size: bytes of a task; None for the usual.
        together: whether results are small.
        part_folder: the folder to which workers write rows; None where rows come here.

    Raises:
        InputError: where the input cannot be read, after everything before it.
        ClusterError: where the cluster fails.
    """
    connected = session(on, jobs)
    job = Job(work, versions(), part_folder)
    usual = _SIZE if together or part_folder is not None else _ROWS
    whole_paths = [  # a worker runs in a folder of its own
        one
        if isinstance(one.path, Address) or one.path == "-"
        else replace(one, path=str(Path(one.path).absolute()))
        for one in sources
    ]
    found = iter(Flow(connected, job, portions(whole_paths, work.reading, size or usual), jobs))
    try:
        for result in found:
            if isinstance(result, GrpoError):
                raise result
            yield result
    except (KeyboardInterrupt, SystemExit):
        found.close()
        connected.close()  # now, or a worker writes one more part
        raise


class _Task(NamedTuple):
    """A portion that is under way.

    Attributes:
        number: its place among the portions.
        portion: the input.
        count: of a range, a reference to the count of its lines.
        results: a reference; None where its rows are there already.
    """

    number: int
    portion: Portion
    count: Ref = None
    results: Ref = None

    @property
    def last(self) -> Ref:
        """What is over when the task is; None where there is nothing to do."""
        return self.count if self.results is None else self.results


class Flow:
    """Runs portions, a bounded number at once; iterate it for their results, in order.

    The lines of a range have numbers when those of all ranges before it are counted: its task gets
    references to the counts, and Ray has it wait for them.

    Args:
        connected: where.
        job: what to do.
        cut: the input.
        jobs: how many tasks run at once; None for as many as there are cores.
    """

    def __init__(
        self, connected: Session, job: Job, cut: Iterator[Portion], jobs: int | None = None
    ) -> None:
        self._cluster, self._folder = connected, job.folder
        self._job = connected.put(job)
        self._cut: Iterator[tuple[int, Portion]] | None = enumerate(cut)
        self._room: Callable[[], int] = lambda: connected.room(jobs)
        self._begun: deque[_Task] = deque()
        self._working: dict[Ref, None] = {}
        self._fault: Exception | None = None
        # Of the file that is read: the lines of ranges that are done, and counts of later ranges.
        self._lines, self._counts = 0, deque[Ref]()

    def __iter__(self) -> Generator[Result | GrpoError]:
        try:
            while self._fill():
                if self._begun[0].last in self._working:
                    for ref in self._cluster.wait([*self._working]):
                        del self._working[ref]
                else:
                    yield from self._finish(self._begun.popleft())
            if self._fault is not None:
                raise self._fault
        finally:
            self._cluster.cancel([*self._working], wait=self._folder is not None)

    def _fill(self) -> bool:
        """Begins as many portions as there is room for; whether any is under way."""
        room = self._room()
        while self._cut and len(self._working) < room and len(self._begun) < 2 * room:
            try:
                task = self._begin(*next(self._cut))
            except StopIteration:
                self._cut = None
            except (GrpoError, OSError) as fault:  # of a file that cannot be cut
                self._cut, self._fault = None, fault
            else:
                self._begun.append(task)
                if task.last is not None:
                    self._working[task.last] = None
        return bool(self._begun)

    def _begin(self, number: int, portion: Portion) -> _Task:
        count, before = None, ()
        if isinstance(portion, Range):
            if not portion.start:
                self._lines, self._counts = 0, deque()
            count, data = self._cluster.look(portion)
            before = data, self._lines, *self._counts
            self._counts.append(count)
        if self._folder is not None and self._folder.keeps(number):
            return _Task(number, portion, count)
        results = self._cluster.evaluate(self._job, number, portion, *before)
        return _Task(number, portion, count, results)

    def _finish(self, task: _Task) -> Iterator[Result | GrpoError]:
        place, results = _place(task.portion), []
        if task.results is not None:
            results = self._cluster.get(task.results, place)
        if self._counts and self._counts[0] == task.count:
            self._lines += self._cluster.get(self._counts.popleft(), place)
        yield from results  # of which an error ends the run
        if self._folder is not None:
            self._folder.add(task.number)


def _place(portion: Portion) -> str:
    """Where an error is, in the words of a message."""
    if isinstance(portion, Files):
        return portion.sources[0].name
    if isinstance(portion, Range):
        return f"{portion.source}, at or after byte {portion.start}"
    return f"{portion.source}, at or after line {portion.line}"
