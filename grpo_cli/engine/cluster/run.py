"""A fold on Ray: what ``Reader.run`` does where ``--on`` says so.

What is held here does not grow with the input: portions are made as they are needed, a bounded
number of tasks is under way, and bytes stay on the nodes that read them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cli.engine.accumulator import A, FoldPiece
from grpo_cli.engine.cluster.parts import PartFolder
from grpo_cli.engine.cluster.session import Session, session, within
from grpo_cli.engine.cluster.tasks import (
    Answer,
    ClusterError,
    Files,
    Job,
    Portion,
    Result,
    evaluate,
    portions,
    versions,
)
from grpo_cli.errors import GrpoError
from grpo_cli.records import Source
from grpo_cli.records.open.blocks import Range, look
from grpo_cli.records.open.remote import Address

Ref = Any

_SIZE = 64 << 20
"""Bytes of a task: half a second of work, against a millisecond that Ray takes to give it."""
_ROWS = 8 << 20
"""Bytes of a task whose rows come here: they are several times as many, and wait for their turn."""
_GIVEN_UP = 10.0
"""Seconds for tasks that are given up to be over."""
_LOOK, _LONG = 1.0, 60.0
"""Seconds after which Ctrl-C is noticed, and those after which a wait is."""


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
        work: the function of pieces.
        sources: the files.
        jobs: how many tasks run at once; None for as many as there are cores.
        size: bytes of a task; None for the usual.
        together: whether results are small.
        part_folder: the folder to which workers write rows; None where rows come here.

    Raises:
        InputError: where the input cannot be read, after everything before it.
        ClusterError: where the cluster fails.
    """
    connected = session(on, jobs)
    parts = None if part_folder is None else part_folder.parts
    cluster = Cluster(connected, Job(work, versions(), parts), jobs)
    usual = _SIZE if together or parts is not None else _ROWS
    whole_paths = [  # a worker runs in a folder of its own
        one
        if isinstance(one.path, Address) or one.path == "-"
        else replace(one, path=str(Path(one.path).absolute()))
        for one in sources
    ]
    cut = portions(whole_paths, work.reading, size or usual)
    found = iter(Flow(cluster, cut, part_folder))
    try:
        for answer in found:
            yield from answer.results
            if answer.fault is not None:
                raise answer.fault
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
        answer: a reference; None where its rows are there already.
    """

    number: int
    portion: Portion
    count: Ref = None
    answer: Ref = None

    @property
    def last(self) -> Ref:
        """What is over when the task is; None where there is nothing to do."""
        return self.count if self.answer is None else self.answer


class Flow:
    """Runs portions, a bounded number at once; iterate it for their answers, in order.

    The lines of a range have numbers when those of all ranges before it are counted: its task gets
    references to the counts, and Ray has it wait for them.

    Args:
        cluster: where.
        cut: the input.
        folder: where workers write rows; None where rows come here.
    """

    def __init__(
        self, cluster: Cluster, cut: Iterator[Portion], folder: PartFolder | None = None
    ) -> None:
        self._cluster = cluster
        self._cut: Iterator[tuple[int, Portion]] | None = enumerate(cut)
        self._folder = folder
        self._begun: deque[_Task] = deque()
        self._working: dict[Ref, None] = {}
        self._fault: Exception | None = None
        # Of the file that is read: the lines of ranges that are done, and counts of later ranges.
        self._lines, self._counts = 0, deque[Ref]()

    def __iter__(self) -> Generator[Answer]:
        try:
            while True:
                self._fill()
                while self._begun and self._begun[0].last not in self._working:
                    yield from self._finish(self._begun.popleft())
                if self._working:
                    for ref in self._cluster.wait(list(self._working)):
                        del self._working[ref]
                elif self._cut is None and not self._begun:
                    break
            if self._fault is not None:
                raise self._fault
        finally:
            self._cluster.cancel(list(self._working))

    def _fill(self) -> None:
        """Begins as many portions as there is room for."""
        room = self._cluster.room()
        while self._cut and len(self._working) < room and len(self._begun) < 2 * room:
            try:
                task = self._begin(*next(self._cut))
            except StopIteration:
                self._cut = None
                return
            except (GrpoError, OSError) as fault:  # of a file that cannot be cut
                self._cut, self._fault = None, fault
                return
            self._begun.append(task)
            if task.last is not None:
                self._working[task.last] = None

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
        return _Task(number, portion, count, self._cluster.evaluate(number, portion, *before))

    def _finish(self, task: _Task) -> Iterator[Answer]:
        place, answer = _place(task.portion), Answer([])
        if task.answer is not None:
            answer = self._cluster.get(task.answer, place)
        if self._counts and self._counts[0] == task.count:
            self._lines += self._cluster.get(self._counts.popleft(), place)
        yield answer
        if self._folder is not None and answer.fault is None:
            self._folder.add(task.number)


def _place(portion: Portion) -> str:
    """Where an error is, in the words of a message."""
    if isinstance(portion, Files):
        return portion.sources[0].name
    if isinstance(portion, Range):
        return f"{portion.source}, at or after byte {portion.start}"
    return f"{portion.source}, at or after line {portion.line}"


class Cluster:
    """The tasks of a job on Ray; each call gives a reference to what a task returns."""

    def __init__(self, connected: Session, job: Job[Any], jobs: int | None) -> None:
        self._session, self._ray = connected, connected.ray
        self._job = connected.ray.put(job)
        self._writes = job.parts is not None
        self._jobs = jobs

    def room(self) -> int:
        """How many tasks may be under way, or wait for it, at once."""
        if self._jobs is not None and not self._session.here:
            return self._jobs
        return 2 * self._session.size()[0]

    def look(self, wanted: Range) -> tuple[Ref, Ref]:
        """Counts the lines of a range; keeps the bytes of a remote one."""
        far = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
        options = far if isinstance(wanted.path, Address) else {"num_cpus": 1}
        count, data = self._session.call(look, wanted, num_returns=2, **options)
        return count, data

    def evaluate(self, number: int, portion: Portion, *before: Ref) -> Ref:
        """Evaluates a portion."""
        return self._session.call(evaluate, self._job, number, portion, *before)

    def wait(self, refs: list[Ref]) -> list[Ref]:
        """Waits until a task is over; those that are. Says so where it takes long."""
        wait, waited = self._ray.wait, 0.0
        while not wait(refs, num_returns=1, timeout=_LOOK, fetch_local=False)[0]:
            self._session.check_begun()
            waited += _LOOK
            if waited % _LONG == 0.0:
                text = f"none of {len(refs)} tasks has finished after {waited:.0f} s"
                with suppress(AttributeError, OSError):  # there may be no standard error
                    sys.stderr.write(f"grpo: note: waiting for Ray: {text}\n")
                    sys.stderr.flush()
        over: list[Ref] = wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]
        return over

    def get(self, ref: Ref, place: str) -> Any:
        """What a task returned; ``place`` says in an error what it worked on.

        Raises:
            GrpoError: where it failed.
        """
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), GrpoError):
                raise cause from None
            raise ClusterError(f"{_why(error)} on {place}; everything before it is done") from None

    def cancel(self, refs: list[Ref]) -> None:
        """Gives up tasks."""
        within(_GIVEN_UP, lambda: [self._ray.cancel(ref, force=True) for ref in refs])
        if refs and self._writes:  # or one of them writes a part behind the error
            self._ray.wait(refs, num_returns=len(refs), timeout=_GIVEN_UP, fetch_local=False)


def _why(error: Exception) -> str:
    """What happened to a task, in a few words."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return "cluster workers ran out of memory"
    if kind in ("WorkerCrashedError", "NodeDiedError", "ActorDiedError"):
        return "cluster workers died repeatedly"
    if "Lost" in kind or "Owner" in kind:
        return "the cluster lost input data"
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error).strip().splitlines()
    return f"a cluster task failed ({type(cause or error).__name__}: {text[-1:] or ''})"
