"""What Ray costs beside the processes of one machine: python tests/clusters/measure.py FILE…

Prints the seconds of each turn, so that the best can be compared; then what an empty task takes,
and the memory of the process that gives work out, for up to 100,000 made-up pieces.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from grpo_cli.engine import Evaluation, Reader, memory
from grpo_cli.engine.cluster import session
from grpo_cli.engine.cluster.flow import Flow
from grpo_cli.engine.cluster.portions import Files
from grpo_cli.engine.cluster.run import _Tasks
from grpo_cli.engine.cluster.tasks import Answer, Done, Job, Result, versions
from grpo_cli.engine.fold import OnPiece, Told
from grpo_cli.engine.totals import Totals
from grpo_cli.records import PLAIN, Source
from grpo_cli.variants.plan import plan

TURNS = 2
JOBS = (1, 2, 4)


def seconds(paths: list[str], **options) -> tuple[float, float]:
    """Of the clock, and of all processors; the first tells little where others use the machine."""
    began, worked = time.perf_counter(), processors()
    for _ in Evaluation(Reader(paths, **options), plan("dr"), encode=None):
        pass
    took = time.perf_counter() - began
    multiprocessing.active_children()  # those that ended are counted when they are asked for
    return took, processors() - worked


def processors() -> float:
    """Seconds of this process, of its children that ended, and of all of Ray."""
    return sum(os.times()[:4]) + sum(map(_of_ray, Path("/proc").iterdir()))


def _of_ray(process: Path) -> float:
    try:
        words = (process / "cmdline").read_bytes()
        if b"ray::" not in words[:40] and b"/raylet" not in words and b"gcs_server" not in words:
            return 0.0
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def scaling(paths: list[str]) -> None:
    size = sum(Path(path).stat().st_size for path in paths)
    print(f"{size / 1e9:.2f} GB in {len(paths)} files")
    for jobs in JOBS:
        close()
        began = time.perf_counter()
        seconds(["samples/dr_grpo_cases.jsonl"] * jobs, on="ray", jobs=jobs)
        print(f"jobs {jobs}: Ray started after {time.perf_counter() - began:.1f} s")
        for _ in range(TURNS):
            pool = seconds(paths, jobs=jobs)
            ray = seconds(paths, on="ray", jobs=jobs)
            for name, (took, worked) in (("processes", pool), ("Ray", ray)):
                print(f"jobs {jobs}: {name} {took:.1f} s, {worked:.1f} s of processors", flush=True)


class MadeUp(_Tasks):
    """Tasks that do nothing."""

    def __init__(self, connected, job, jobs) -> None:
        super().__init__(connected, job, jobs)
        self._empty = connected.ray.remote(lambda: Answer([Result(Done("", 1, 1), TOTALS, Told())]))

    def evaluate(self, number, portion):
        return self._empty.options(max_retries=5).remote()


TOTALS = Totals("input")


def made_up(count: int) -> Iterator[Files]:
    for number in range(count):
        yield Files((Source(f"{number}", f"{number}"),), 1)


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def empty_tasks() -> None:
    connected = session.session("ray", 4)
    tasks = MadeUp(connected, Job(OnPiece(None, PLAIN), versions()), None)
    for count in (1_000, 10_000, 100_000):
        began, most = time.perf_counter(), 0.0
        done = 0
        for answer in Flow(tasks, made_up(count), together=True):
            done += sum(result.done.size for result in answer.results)
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
    if len(sys.argv) > 1:
        scaling(sys.argv[1:])
    close()
    empty_tasks()
    close()
