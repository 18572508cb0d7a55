"""Blocks to worker processes and their outcomes back, in the blocks' order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import TypeVar

from grpo_cli.errors import GrpoError
from grpo_cli.records import Block, Span

Piece = Block | Span
T = TypeVar("T")

_AHEAD = 2  # blocks that wait for each worker: enough that none is idle while another is slow


class WorkerError(GrpoError):
    """A worker process died; not the user's fault, nor that of the data as far as is known."""

    exit_code = 70


def cores() -> int:
    """The cores this process may use: its affinity, and its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(count or 1, _quota()))


def _quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no control group, or "max"
        return 1 << 30


def in_order(
    work: Callable[[Piece], T], pieces: Iterable[Piece], jobs: int
) -> Iterator[tuple[Piece, T]]:
    """What ``work`` makes of each block, in the blocks' order, by ``jobs`` processes.

    At most a few blocks are under way at once, so memory does not grow with the input. Leaving
    the iterator early (Ctrl-C, an error) ends the workers at once.

    Raises:
        WorkerError: where a worker died, with the block it had.
    """
    rest = iter(pieces)
    pool = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(os.getpid(),))
    waiting: deque[tuple[Piece, Future[T]]] = deque()
    try:
        while True:
            for piece in islice(rest, _AHEAD * jobs - len(waiting)):
                waiting.append((piece, pool.submit(work, piece)))
            if not waiting:
                break
            piece, future = waiting.popleft()
            yield piece, _result(piece, future)
        pool.shutdown()
    finally:
        _end(pool)


def _result(piece: Piece, future: Future[T]) -> T:
    try:
        return future.result()
    except BrokenProcessPool:
        place = f"{piece.source}, at or after line {piece.line}"
        raise WorkerError(
            f"a worker process died on {place} (killed, or out of memory?); "
            "what came before it is evaluated; --jobs 1 works in one process"
        ) from None


def _end(pool: ProcessPoolExecutor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():
        process.kill()


def _begin(parent: int) -> None:
    """What a worker does first: it leaves Ctrl-C to its parent, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
