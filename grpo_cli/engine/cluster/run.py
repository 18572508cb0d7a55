"""A fold on Ray: what ``Reader.map`` does where ``--on`` says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from grpo_cli.engine.cluster.flow import Flow
from grpo_cli.engine.cluster.manifest import Manifest
from grpo_cli.engine.cluster.place import Ref
from grpo_cli.engine.cluster.portions import SIZE, Files, portions
from grpo_cli.engine.cluster.session import Session, session
from grpo_cli.engine.cluster.tasks import ClusterError, Job, Result, versions
from grpo_cli.engine.pieces import OnPiece
from grpo_cli.records import Piece, Source
from grpo_cli.records.open.address import Address
from grpo_cli.records.open.ranges import Range

T = TypeVar("T")

_ROWS = 8 << 20
"""Bytes of a task whose rows come here: they are several times as many, and wait for their turn."""

_GIVEN_UP = 10.0
"""Seconds for tasks that are given up to be over."""


def on_ray(
    on: str,
    work: OnPiece[T],
    sources: Sequence[Source],
    *,
    jobs: int | None,
    size: int | None,
    together: bool,
    manifest: Manifest | None = None,
) -> Iterator[Result]:
    """What ``work`` makes of every portion of the files, in order.

    Args:
        on: which Ray, as ``--on`` names it.
        work: what is made of pieces.
        sources: the files.
        jobs: how many tasks run at once; None for as many as there are cores.
        size: bytes of a task; None for the usual.
        together: whether results of portions that follow each other may come merged.
        manifest: of the parts that workers write; None where rows come here.

    Raises:
        InputError: where the input cannot be read, after everything before it.
        ClusterError: where the cluster fails.
    """
    connected = session(on, jobs)
    parts = None if manifest is None else manifest.parts
    tasks = _Tasks(connected, Job(work, versions(), parts), jobs)
    together = together or parts is not None
    usual = SIZE if together else _ROWS
    found = [_from_anywhere(source) for source in sources]
    flow = Flow(tasks, portions(found, work.reading, size or usual), together=together)
    answers = iter(flow)
    try:
        for answer in answers:
            if manifest is not None:
                for written in answer.written:
                    manifest.add(written)
            yield from answer.results
            if answer.fault is not None:
                raise answer.fault
    except (KeyboardInterrupt, SystemExit):
        answers.close()
        connected.close()  # now, or a worker writes one more part that is not listed
        raise


def _from_anywhere(source: Source) -> Source:
    """The same with the whole path: a worker runs in a folder of its own."""
    if isinstance(source.path, Address) or source.path == "-":
        return source
    return source._replace(path=str(Path(source.path).absolute()))


class _Tasks:
    """The tasks of a job on Ray."""

    def __init__(self, connected: Session, job: Job[Any], jobs: int | None) -> None:
        self._session = connected
        self._ray = connected.ray
        self._job = connected.ray.put(job)
        self._writes = job.parts is not None
        self._jobs = jobs

    def room(self) -> int:
        if self._jobs is not None and not self._session.here:
            return self._jobs
        return 2 * self._session.cores()

    def read(self, wanted: Range) -> tuple[Ref, Ref]:
        far = isinstance(wanted.path, Address)
        task = self._session.read_remote if far else self._session.read
        ends, rest = task.remote(wanted)
        return ends, rest

    def evaluate(self, number: int, portion: Files | Piece) -> Ref:
        return self._session.evaluate.remote(self._job, number, portion)

    def evaluate_range(
        self, number: int, wanted: Range, line: int, rest: Ref, completion: list[bytes]
    ) -> Ref:
        task = self._session.evaluate_range
        return task.remote(self._job, number, wanted, line, rest, completion)

    def merge(self, answers: list[Ref]) -> Ref:
        return self._session.merge.remote(*answers)

    def ready(self, refs: list[Ref], *, at_least: int) -> list[Ref]:
        wait = self._ray.wait
        if at_least:
            wait(refs, num_returns=at_least, fetch_local=False)
        there: list[Ref] = wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]
        return there

    def get(self, ref: Ref, place: str) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            raise ClusterError(f"{_why(error)} on {place}; what came before it is done") from None

    def cancel(self, refs: list[Ref]) -> None:
        for ref in refs:
            try:
                self._ray.cancel(ref, force=True)
            except Exception:
                continue
        if refs and self._writes:  # or one of them writes what nobody lists any more
            self._ray.wait(refs, num_returns=len(refs), timeout=_GIVEN_UP, fetch_local=False)


def _why(error: Exception) -> str:
    """What happened to a task, in a few words."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return "workers of the cluster ran out of memory"
    if kind in ("WorkerCrashedError", "NodeDiedError", "ActorDiedError"):
        return "workers of the cluster died again and again"
    if "Lost" in kind or "Owner" in kind:
        return "the cluster lost what was read"
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error).strip().splitlines()
    return f"a task of the cluster failed ({type(cause or error).__name__}: {text[-1:] or ''})"
