"""Pieces to worker processes and their outcomes back, in the pieces' order.

The standard library's ``ProcessPoolExecutor`` in its place was as fast, but two of some ten runs of
the tests that kill a worker hung with it: its workers share one pipe for their results.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from grpo_cli.engine import memory
from grpo_cli.errors import GrpoError
from grpo_cli.records import Block, Piece

T = TypeVar("T")
Work = Sequence[Piece]

_AHEAD = 2  # pieces a worker is given at once: it has the next when it is done with one
_WAITING = 4  # results per worker that may wait for a slower one before them


class WorkerError(GrpoError):
    """A worker process died; not the user's fault, nor that of the data as far as is known."""

    exit_code = 70


def cores() -> int:
    """The cores this process may use: its affinity, and its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(count or 1, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no control group, or "max"
        return count or 1


class _Failed(NamedTuple):
    """What a worker sends in place of a result: an error that its parent raises in its turn."""

    error: Exception


class _Worker:
    """A process that works on the pieces it is given, in their order."""

    def __init__(self, work: Callable[[Work], object]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        # A daemon: whatever happens here, it does not outlive this process's regular end.
        self.process = multiprocessing.Process(target=_serve, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen here
        self.given: deque[tuple[int, Work]] = deque()

    def give(self, number: int, piece: Work) -> None:
        """Hands over a piece."""
        self.given.append((number, piece))
        try:
            with _without_sigpipe():
                self.connection.send(piece)
        except OSError:
            raise _died(piece) from None

    def take(self) -> tuple[int, Work, Any]:
        """The result that it has sent.

        Raises:
            WorkerError: if it died instead.
        """
        number, piece = self.given.popleft()
        try:
            return number, piece, self.connection.recv()
        except (EOFError, OSError):
            raise _died(piece) from None


def in_order(
    work: Callable[[Work], T], pieces: Iterable[Work], jobs: int
) -> Iterator[tuple[Work, T]]:
    """What ``work`` makes of each block, in the blocks' order, by ``jobs`` processes.

    The number of blocks under way is bounded, so memory does not grow with the input. Leaving
    the iterator early (Ctrl-C, an error) ends the workers at once.

    Raises:
        WorkerError: where a worker died, with the block it had.
        Exception: what ``work`` raised on a block, behind the results of all blocks before it.
    """
    rest = enumerate(pieces)
    workers: list[_Worker] = []
    finished: dict[int, tuple[Work, T | _Failed]] = {}
    wanted = 0
    try:
        for _ in range(jobs):  # where one cannot be started, those before it are ended as well
            workers.append(_Worker(work))
        _feed(workers, rest)
        while busy := [worker for worker in workers if worker.given]:
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection in ready:
                    number, piece, result = worker.take()
                    finished[number] = (piece, result)
            following: deque[tuple[Work, T | _Failed]] = deque()
            while wanted in finished:
                following.append(finished.pop(wanted))
                wanted += 1
            if len(finished) < _WAITING * jobs:  # they work while what they made is used
                _feed(workers, rest)
            while following:  # nothing keeps what was used
                piece, result = following.popleft()
                if isinstance(result, _Failed):
                    raise result.error
                yield piece, result
    finally:
        for worker in workers:
            worker.process.kill()


def _feed(workers: Sequence[_Worker], rest: Iterator[tuple[int, Work]]) -> None:
    """Gives pieces to workers that run short; a large message must not wait for their attention."""
    for worker in sorted(workers, key=lambda worker: len(worker.given)):
        while len(worker.given) < _AHEAD and not any(
            isinstance(one, Block) for _, some in worker.given for one in some
        ):
            following = next(rest, None)
            if following is None:
                return
            worker.give(*following)


@contextmanager
def _without_sigpipe() -> Iterator[None]:
    """What is sent to a worker that is gone is an error; SIGPIPE is for standard output."""
    name = getattr(signal, "SIGPIPE", None)
    if name is None or signal.getsignal(name) is not signal.SIG_DFL:
        yield
        return
    signal.signal(name, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(name, signal.SIG_DFL)


def _died(pieces: Work) -> WorkerError:
    place = f"{pieces[0].source}, at or after line {pieces[0].line}"
    return WorkerError(
        f"a worker process died on {place} (killed or out of memory?); everything before it is "
        "evaluated; --jobs 1 uses a single process"
    )


def _serve(work: Callable[[Work], object], connection: Connection) -> None:
    """The life of a worker. It leaves Ctrl-C to its parent, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # temporary files are its parent's to remove
    memory.settle()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            piece = connection.recv()
        except (EOFError, OSError):
            return
        try:
            with np.errstate(all="ignore"):  # as in the process that started it
                found: object = work(piece)
        except (GrpoError, MemoryError) as error:
            found = _Failed(error)
        connection.send(found)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone, whatever the start method.

    Under ``forkserver`` the process above this one is the server, not the one that waits for it.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
