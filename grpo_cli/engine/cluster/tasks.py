"""The tasks that an input is cut into, and what a worker does with one."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from grpo_cli.engine import memory
from grpo_cli.engine.accumulator import Folded, FoldPiece
from grpo_cli.engine.cluster.parts import PartFolder
from grpo_cli.errors import GrpoError, InputError, until_error
from grpo_cli.records import Piece, Reading, Source
from grpo_cli.records.open.blocks import Bytes, Range, blocks_of
from grpo_cli.records.open.streams import version_of
from grpo_cli.version import VERSION


class ClusterError(GrpoError):
    """The cluster is not as it should be, or failed."""

    exit_code = 70


class Files(NamedTuple):
    """Files that one task reads from their beginning to their end.

    Attributes:
        sources: the files.
        size: how many bytes they have.
    """

    sources: tuple[Source, ...]
    size: int


Portion = Files | Range | Piece


def portions(sources: Sequence[Source], reading: Reading, size: int) -> Iterator[Portion]:
    """The input in the order of its files, for tasks of about ``size`` bytes.

    What cannot be cut is read whole: packed files, documents, and files whose rows are put
    together to groups.
    """
    together: list[Source] = []
    held = 0
    for source in sources:
        cut: Sequence[Portion] | None = None
        if source.path == "-":
            cut = list(reading.pieces(source, size))
        elif (own := _size(source)) > size:
            cut = reading.ranges(source, size)
        if cut is None:
            together.append(source)
            held += own
        if together and (cut is not None or held >= size):
            yield Files(tuple(together), held)
            together, held = [], 0
        yield from cut or ()
    if together:
        yield Files(tuple(together), held)


def _size(source: Source) -> int:
    try:
        return version_of(source.path).size
    except OSError:
        return 0  # the worker that reads it says what is wrong


def versions() -> dict[str, str]:
    """The versions on which a number, or the meaning of what travels, may depend."""
    return {
        "grpo": VERSION,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
        "orjson": orjson.__version__,
    }


class Job(NamedTuple):
    """What is done with every portion.

    Attributes:
        work: adds up its pieces.
        versions: those of the process that asks.
        folder: where rows are written; None where they travel.
    """

    work: FoldPiece[Any]
    versions: dict[str, str]
    folder: PartFolder | None = None


Result = tuple[int, Folded[Any]]
"""The bytes of a file, range or piece, and its sums."""


def evaluate(
    job: Job, number: int, portion: Portion, data: Bytes | None = None, *counts: int
) -> list[Result | GrpoError]:
    """The task: the results of a portion, and last the error at which it ends; writes its rows.

    Args:
        number: the place of the portion among all.
        data: the bytes of a range, where they were read already.
        counts: the lines of the ranges before it in its file.
    """
    memory.settle()
    found: list[Result] = []
    try:
        mine = versions()
        for name, theirs in job.versions.items():
            if mine[name] != theirs:
                raise ClusterError(f"{name} is {mine[name]} on a worker and {theirs} here")
        for source, size, pieces in _inputs(job, portion, sum(counts), data):
            unread: list[Exception] = []
            found.append((size, job.work(until_error(pieces, unread))))
            if unread:
                raise _located(unread[0], source)
        if job.folder is not None:
            job.folder.write(number, [folded for _, folded in found])
    except GrpoError as error:
        return [*found, error]
    return [*found]


def _inputs(
    job: Job, portion: Portion, before: int, data: Bytes | None
) -> Iterator[tuple[str, int, Iterable[Piece]]]:
    """The file, the bytes and the pieces of each part of a portion."""
    if isinstance(portion, Files):
        for source in portion.sources:
            size = portion.size // len(portion.sources)
            yield source.name, size, job.work.reading.pieces(source)
    elif isinstance(portion, Range):
        yield portion.source, portion.size, blocks_of(portion, before, data)
    else:
        yield portion.source, portion.size, (portion,)


def _located(error: Exception, source: str) -> GrpoError:
    """What stopped the reading of a file, with its place.

    Raises:
        Exception: where it is no fault of the input.
    """
    if not isinstance(error, (GrpoError, OSError)):
        raise error
    fault = error if isinstance(error, GrpoError) else InputError(str(error))
    if isinstance(fault, InputError):
        fault.source = fault.source or source
    return fault
