"""What a worker does: it reads a range, evaluates a portion, merges results."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import orjson

from grpo_cli.engine import memory
from grpo_cli.engine.cluster.portions import Files
from grpo_cli.engine.fold import Notices, OnPiece
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.records import Piece, Source
from grpo_cli.records.open.ranges import Bytes, Ends, Range, blocks_of, fetch
from grpo_cli.version import VERSION

T = TypeVar("T")


class Done(NamedTuple):
    """What was read for a result.

    Attributes:
        source: the file as the user named it.
        line: the 1-based number of its first line there.
        size: how many bytes.
    """

    source: str
    line: int
    size: int


class Result(NamedTuple):
    """What a part of the input comes to."""

    done: Done
    value: Any
    notices: Notices


class Answer(NamedTuple):
    """What a portion comes to, and why its rest could not be read."""

    results: list[Result]
    fault: Exception | None = None


class ClusterError(GrpoError):
    """The cluster is not as it should be, or failed."""

    exit_code = 70


def versions() -> dict[str, str]:
    """The versions on which a number, or the meaning of what travels, may depend."""
    return {
        "grpo": VERSION,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
        "orjson": orjson.__version__,
    }


@dataclass(frozen=True)
class Job(Generic[T]):
    """What is done with every portion.

    Attributes:
        work: what is made of pieces.
        versions: those of the process that asks.
    """

    work: OnPiece[T]
    versions: dict[str, str]

    def check(self) -> None:
        """Refuses to compute with other versions.

        Raises:
            ClusterError: where they differ.
        """
        mine = versions()
        for name, theirs in self.versions.items():
            if mine[name] != theirs:
                raise ClusterError(f"{name} is {mine[name]} on a worker and {theirs} here")

    def result(self, done: Done, pieces: Iterable[Piece]) -> Result:
        """What some pieces come to as one."""
        return Result(done, *self.work.all_of(pieces))


def read(wanted: Range) -> tuple[Ends | Exception, Bytes | None]:
    """A range, or why it cannot be read."""
    try:
        return fetch(wanted)
    except GrpoError as error:
        return error, None


def evaluate_range(
    job: Job[T], source: str, line: int, rest: Bytes, completion: Sequence[bytes]
) -> Answer:
    """What the lines of a range come to; ``completion`` ends the last of them."""
    memory.settle()
    try:
        job.check()
    except GrpoError as error:
        return Answer([], error)
    done = Done(source, line, len(rest) + sum(map(len, completion)))
    return Answer([job.result(done, blocks_of(source, line, rest, completion))])


def evaluate(job: Job[T], portion: Files | Piece) -> Answer:
    """What files come to, each on its own, or a piece; up to where reading fails."""
    memory.settle()
    results: list[Result] = []
    faults: list[Exception] = []
    try:
        job.check()
        if not isinstance(portion, Files):
            done = Done(portion.source, portion.line, portion.size)
            return Answer([job.result(done, [portion])])
        for source in portion.sources:
            size = portion.size // len(portion.sources)
            pieces = _until(job.work.reading.pieces(source), source, faults)
            results.append(job.result(Done(source.name, 1, size), pieces))
            if faults:
                break
    except GrpoError as error:
        faults.append(error)
    return Answer(results, faults[0] if faults else None)


def _until(pieces: Iterator[Piece], source: Source, faults: list[Exception]) -> Iterator[Piece]:
    """The pieces before the one that cannot be read; why goes to ``faults``."""
    try:
        yield from pieces
    except (GrpoError, OSError) as error:
        fault = error if isinstance(error, GrpoError) else InputError(str(error))
        if isinstance(fault, InputError):
            fault.source = fault.source or source.name
        faults.append(fault)


def merge(*answers: Answer) -> Answer:
    """Answers that follow each other as one, up to the first that failed."""
    whole: Result | None = None
    for answer in answers:
        for done, value, notices in answer.results:
            if whole is None:
                whole = Result(done, value, notices)
                continue
            whole.value.merge(value)
            size = whole.done.size + done.size
            whole = Result(whole.done._replace(size=size), whole.value, whole.notices | notices)
        if answer.fault is not None:
            return Answer([] if whole is None else [whole], answer.fault)
    return Answer([] if whole is None else [whole])
