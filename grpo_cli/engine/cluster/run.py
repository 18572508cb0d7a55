"""A fold on Ray: what ``Reader.run`` does where ``--on`` says so.

What is held here does not grow with the input: portions are made as they are needed, a bounded
number of tasks is under way, and bytes stay on the nodes that read them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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


@dataclass
class _Task:
    """A portion that is under way.

    Attributes:
        number: its place among the portions.
        portion: the input.
        looked: of a range, references to the count of its lines and to its bytes.
        answer: a reference; None until the lines before it are counted, and where it is kept.
        kept: whether its rows are there already.
        fault: why it cannot be evaluated.
    """

    number: int
    portion: Portion
    looked: tuple[Ref, Ref] | None = None
    answer: Ref = None
    kept: bool = False
    fault: Exception | None = None

    def is_over(self, working: Container[Ref]) -> bool:
        """Whether it is evaluated, kept or refused."""
        evaluated = self.answer is not None and self.answer not in working
        return self.kept or self.fault is not None or evaluated


class Flow:
    """Runs portions, a bounded number at once; iterate it for their answers, in order.

    Args:
        cluster: where.
        cut: the input.
        folder: where workers write rows; None where rows come here.
    """

    def __init__(
        self, cluster: Cluster, cut: Iterator[Portion], folder: PartFolder | None = None
    ) -> None:
        self._cluster = cluster
        self._cut = enumerate(cut)
        self._folder = folder
        self._begun: deque[_Task] = deque()
        self._working: dict[Ref, None] = {}
        self._lines = 0  # before the next range of its file
        self._more = True

    def __iter__(self) -> Generator[Answer]:
        try:
            while True:
                self._begin()
                for task in self._begun:
                    if not self._is_answered(task):
                        break
                while self._begun and self._begun[0].is_over(self._working):
                    task = self._begun.popleft()
                    if task.fault is not None:
                        raise task.fault
                    answer = Answer([])
                    if not task.kept:
                        answer = self._cluster.get(task.answer, _place(task.portion))
                        yield answer
                    if self._folder is not None and answer.fault is None:
                        self._folder.add(task.number)
                if self._working:
                    for ref in self._cluster.wait(list(self._working)):
                        del self._working[ref]
                elif not self._begun and not self._more:
                    return
        finally:
            self._cluster.cancel(list(self._working))

    def _begin(self) -> None:
        """Takes as many portions as there is room for."""
        room = self._cluster.room()
        while self._more and len(self._working) < room and len(self._begun) < 2 * room:
            try:
                task = _Task(*next(self._cut))
            except StopIteration:
                self._more = False
                return
            except (GrpoError, OSError) as fault:  # of a file that cannot be cut
                task = _Task(0, Files((), 0), fault=fault)
                self._more = False
            if isinstance(task.portion, Range):
                task.looked = self._cluster.look(task.portion)
                self._working[task.looked[0]] = None
            self._begun.append(task)

    def _is_answered(self, task: _Task) -> bool:
        """Whether a portion is evaluated, or will be: not before its lines have numbers."""
        if task.answer is not None or task.kept:
            return True
        before: tuple[Any, ...] = ()
        if isinstance(task.portion, Range) and task.looked is not None:
            if task.looked[0] in self._working:
                return False
            before = (self._lines if task.portion.start else 0), task.looked[1]
            try:
                self._lines = before[0] + self._cluster.get(task.looked[0], _place(task.portion))
            except GrpoError as fault:
                task.fault, self._more = fault, False
        if task.fault is not None:
            return False
        task.kept = self._folder is not None and self._folder.keeps(task.number)
        if not task.kept:
            task.answer = self._cluster.evaluate(task.number, task.portion, *before)
            self._working[task.answer] = None
        return True


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
