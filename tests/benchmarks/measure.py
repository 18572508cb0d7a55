"""Commands timed in turns: process time and wall time, each child alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}


class Spent(NamedTuple):
    """What a command took: seconds of all its threads and workers, seconds, MB of one process."""

    cpu: float
    wall: float
    memory: float
    printed: str


def spend(command: list[str]) -> Spent:
    """Runs a command."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        printed = child.stdout.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if child.returncode not in (0, 1):
        raise RuntimeError(f"exit code {child.returncode}: {' '.join(command)}")
    return Spent(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, printed.strip())


class Timed(NamedTuple):
    """A command on a file, without what it takes on the smallest file of the kind.

    Attributes:
        cpu: seconds of process time in each turn.
        wall: seconds by the clock in each turn.
        memory: MB, the most of all turns.
    """

    cpu: list[float]
    wall: list[float]
    memory: float

    def ratio(self, other: Timed) -> tuple[float, float, float]:
        """Its process time as a multiple of another's: of the best turns; least, most of a turn."""
        each = [mine / theirs for mine, theirs in zip(self.cpu, other.cpu, strict=True)]
        return min(self.cpu) / min(other.cpu), min(each), max(each)


def in_turns(
    commands: Mapping[str, list[str]], smallest: Mapping[str, list[str]], turns: int
) -> dict[str, Timed]:
    """Runs commands in turns, since whatever else a machine does only ever adds.

    Args:
        commands: name → the command.
        smallest: name → the same command on the smallest file of the kind.
        turns: how often each is run.
    """
    starts = {name: [spend(smallest[name]) for _ in range(turns)] for name in commands}
    runs: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, command in commands.items():
            runs[name].append(spend(command))
    found = {}
    for name, spent in runs.items():
        cpu, wall = (min(getattr(one, what) for one in starts[name]) for what in ("cpu", "wall"))
        found[name] = Timed(
            [max(one.cpu - cpu, 1e-3) for one in spent],
            [max(one.wall - wall, 1e-3) for one in spent],
            max(one.memory for one in spent),
        )
    return found


def grpo(command: str, *arguments: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "grpo_cli", command, *arguments]
