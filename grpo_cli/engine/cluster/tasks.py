"""What a worker does: it reads a range, evaluates a portion, merges results."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import orjson

from grpo_cli.engine import memory
from grpo_cli.engine.cluster.parts import Parts, Written
from grpo_cli.engine.cluster.portions import Files
from grpo_cli.engine.facts import InputFacts
from grpo_cli.engine.pieces import OnPiece
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
    told: InputFacts


class Answer(NamedTuple):
    """What a portion comes to, why its rest could not be read, and the parts that it is in."""

    results: list[Result]
    fault: Exception | None = None
    written: Sequence[Written] = ()


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
        parts: where rows are written; None where they travel.
    """

    work: OnPiece[T]
    versions: dict[str, str]
    parts: Parts | None = None

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
    job: Job[T],
    number: int,
    wanted: Range,
    line: int,
    rest: Bytes | None,
    completion: Sequence[bytes],
) -> Answer:
    """What the lines of a range come to; ``completion`` ends the last of them."""

    def results(_: list[Exception]) -> list[Result]:
        done = Done(wanted.source, line, wanted.size + sum(map(len, completion)))
        return [job.result(done, blocks_of(wanted, line, rest, completion))]

    return _answer(job, number, results)


def evaluate(job: Job[T], number: int, portion: Files | Piece) -> Answer:
    """What files come to, each on its own, or a piece; up to where reading fails."""

    def results(faults: list[Exception]) -> list[Result]:
        if not isinstance(portion, Files):
            return [job.result(Done(portion.source, portion.line, portion.size), [portion])]
        made: list[Result] = []
        for source in portion.sources:
            size = portion.size // len(portion.sources)
            pieces = _until(job.work.reading.pieces(source), source, faults)
            made.append(job.result(Done(source.name, 1, size), pieces))
            if faults:
                break
        return made

    return _answer(job, number, results)


def _answer(job: Job[T], number: int, results: Callable[[list[Exception]], list[Result]]) -> Answer:
    """The results, or the part of them that is there already; and what went wrong."""
    memory.settle()
    faults: list[Exception] = []
    made: list[Result] = []
    try:
        job.check()
        kept = None if job.parts is None else job.parts.kept(number)
        if kept is not None:
            return Answer([], None, (kept,))
        made = results(faults)
        if job.parts is not None and not faults:
            written = job.parts.write(number, made)
            return Answer(made, None, () if written is None else (written,))
    except GrpoError as error:
        faults.append(error)
    return Answer(made, faults[0] if faults else None)


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
    written: list[Written] = []
    fault: Exception | None = None
    for answer in answers:
        for result in answer.results:
            whole = result if whole is None else _joined(whole, result)
        written += answer.written
        fault = answer.fault
        # An outcome that has an error is the last: what follows it is no part of the answer.
        if fault is not None or getattr(whole and whole.value, "error", None) is not None:
            break
    return Answer([] if whole is None else [whole], fault, written)


def _joined(first: Result, later: Result) -> Result:
    first.value.merge(later.value)
    done = first.done._replace(size=first.done.size + later.done.size)
    first.told.merge(later.told)
    return Result(done, first.value, first.told)
