"""What Ray costs beside the processes of one machine, as a table.

python tests/clusters/measure.py FILE…            1, 2, 4, … workers, up to one for each core
python tests/clusters/measure.py --turns 3 FILE…  the best of so many turns
python tests/clusters/measure.py --pieces 1000000 empty tasks: time, and the driver's memory
python tests/clusters/measure.py --make 8e9 DIR   writes such files: 4 responses of 500 tokens
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from grpo_cli.engine import Evaluation, Reader, memory
from grpo_cli.engine.accumulator import FoldPiece
from grpo_cli.engine.cluster import session
from grpo_cli.engine.cluster.run import Cluster, Flow
from grpo_cli.engine.cluster.tasks import Answer, Files, Job, versions
from grpo_cli.engine.pool import cores
from grpo_cli.engine.totals import Totals
from grpo_cli.records import PLAIN, Source
from grpo_cli.variants.plan import plan

PIECES = (1_000, 10_000, 100_000)


class Took(NamedTuple):
    """Seconds of the clock, and of all processors: the first tells little on a busy machine."""

    clock: float
    work: float


def took(paths: list[str], **options) -> Took:
    began, worked = time.perf_counter(), processors()
    for _ in Evaluation(Reader(paths, **options), plan("dr"), encode=None):
        pass
    clock = time.perf_counter() - began
    for child in multiprocessing.active_children():  # those that ended are counted then
        child.join()
    return Took(clock, processors() - worked)


def processors() -> float:
    """Seconds of this process, of its children that ended, and of the Ray that it started."""
    own = [one._folder for one in session._SESSIONS.values()]
    found = {} if not own else dict(filter(None, map(_process, Path("/proc").glob("[0-9]*"))))
    raylets = {pid for pid, (words, _, _) in found.items() if f"{own[0]}/" in words}
    of_ray = sum(
        seconds
        for pid, (_, parent, seconds) in found.items()
        if pid in raylets or parent in raylets
    )
    return sum(os.times()[:4]) + of_ray


def _process(place: Path) -> tuple[int, tuple[str, int, float]] | None:
    """A process: its command, the one that started it, and its seconds."""
    try:
        words = (place / "cmdline").read_bytes().decode(errors="replace")
        fields = (place / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return int(place.name), (words, int(fields[1]), seconds)


def scaling(paths: list[str], turns: int) -> None:
    size = sum(Path(path).stat().st_size for path in paths)
    print(f"{size / 1e9:.2f} GB in {len(paths)} files, best of {turns}; clock / processors in s")
    print("| workers | processes | Ray | Ray, of the processes | efficiency of Ray |")
    print("|---:|---:|---:|---:|---:|")
    jobs, alone = 1, 0.0
    while jobs <= cores():
        warm(jobs)
        pool = [took(paths, jobs=jobs) for _ in range(turns)]
        ray = [took(paths, on="ray", jobs=jobs) for _ in range(turns)]
        ours, theirs = min(pool), min(ray)
        alone = alone or theirs.clock
        print(
            f"| {jobs} | {ours.clock:.1f} / {ours.work:.1f} | {theirs.clock:.1f} / "
            f"{theirs.work:.1f} | {ours.clock / theirs.clock:.2f} | "
            f"{alone / jobs / theirs.clock:.2f} |",
            flush=True,
        )
        jobs *= 2


def warm(jobs: int) -> None:
    """Starts Ray anew, and has all its workers import what they need."""
    close()
    connected = session.session("ray", jobs)
    waited = connected.ray.remote(lambda: time.sleep(1) or versions())
    connected.ray.get([waited.remote() for _ in range(jobs)])
    time.sleep(5)  # what else it starts is busy with that for a while


def make(size: float, folder: Path) -> None:
    """Four files of records with the digits of real log-probs."""
    draw = np.random.default_rng(16)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        left = size / 4
        with (folder / f"{number}.jsonl").open("wb") as stream:
            while left > 0:
                new = -draw.exponential(0.5, (4, 500))
                old = new - draw.normal(0, 0.02, (4, 500)).clip(min=0)
                rewards = draw.integers(0, 2, 4).tolist()
                values = {"log_probs_new": new.tolist(), "log_probs_old": old.tolist()}
                left -= stream.write(orjson.dumps({**values, "rewards": rewards}) + b"\n")


class MadeUp(Cluster):
    """Tasks that do nothing."""

    def __init__(self, connected, job, jobs) -> None:
        super().__init__(connected, job, jobs)
        self._empty = connected.ray.remote(lambda: Answer([(1, TOTALS)]))

    def evaluate(self, number, portion):
        return self._empty.options(max_retries=5).remote()


TOTALS = Totals("input")


def made_up(count: int) -> Iterator[Files]:
    for number in range(count):
        yield Files((Source(f"{number}", f"{number}"),), 1)


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def empty_tasks(counts: Sequence[int]) -> None:
    connected = session.session("ray", 4)
    work = FoldPiece(None, PLAIN, skip=False, most_errors=0)
    tasks = MadeUp(connected, Job(work, versions()), None)
    for count in counts:
        began, most = time.perf_counter(), 0.0
        done = 0
        for answer in Flow(tasks, made_up(count)):
            done += sum(size for size, _ in answer.results)
            most = max(most, resident())
        assert done == count
        took = time.perf_counter() - began
        print(f"{count:,} empty tasks: {took / count * 1e3:.2f} ms each, {most:.0f} MB resident")


def close() -> None:
    for connected in session._SESSIONS.values():
        connected.close()
    session._SESSIONS.clear()


if __name__ == "__main__":
    memory.settle()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--pieces", type=int)
    parser.add_argument("--make", type=float)
    parser.add_argument("files", nargs="*")
    flags = parser.parse_args()
    if flags.make:
        make(flags.make, Path(flags.files[0]))
    elif flags.files:
        scaling(flags.files, flags.turns)
    else:
        empty_tasks([flags.pieces] if flags.pieces else PIECES)
    close()
