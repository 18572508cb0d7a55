"""Commands timed in turns: process time and wall time, each child alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}


class Spent(NamedTuple):
    """What a command took: seconds of all its threads, seconds, MB of one process at most."""

    cpu: float
    wall: float
    memory: float
    said: str


def spend(command: list[str]) -> Spent:
    """Runs a command."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        said = child.stdout.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if child.returncode not in (0, 1):
        raise RuntimeError(f"exit code {child.returncode}: {' '.join(command)}")
    return Spent(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, said.strip())


class Ratio(NamedTuple):
    """One command against another: of their best times, and within each turn."""

    cpu: float
    wall: float
    least: float
    most: float
    above: Spent
    below: Spent


def ratio(above: list[str], below: list[str], turns: int, *, less: float = 0.0) -> Ratio:
    """Runs two commands in turns, since whatever else a machine does only ever adds.

    Args:
        above, below: the commands.
        turns: how often each is run.
        less: seconds of process time that both spend before they begin.
    """
    pairs = [(spend(above), spend(below)) for _ in range(turns)]
    each = [(one.cpu - less) / (other.cpu - less) for one, other in pairs]
    bests = [min(spent, key=lambda one: one.cpu) for spent in zip(*pairs, strict=True)]
    walls = [min(one.wall for one in spent) for spent in zip(*pairs, strict=True)]
    cpu = (bests[0].cpu - less) / (bests[1].cpu - less)
    return Ratio(cpu, walls[0] / walls[1], min(each), max(each), *bests)


def grpo(command: str, *arguments: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "grpo_cli", command, *arguments]


def peer(name: str, path: Path) -> list[str]:
    """One of ``peers``."""
    return [sys.executable, str(HERE / "peers.py"), name, str(path)]
