"""Commands timed in turns, each in a fork of a process that has imported everything.

That process first runs its command on the smallest file of the kind. In each turn one fork runs it
on that file again, and another on the file that is timed; the least of the first is its start. One
fork runs at a time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}
ENVIRONMENT |= {"OPENBLAS_NUM_THREADS": "1"}
Words = Sequence[str]
"""One of ``SCRIPTS``, a shape and a file; or a command line of ``grpo``."""
SCRIPTS = ("loop", "columns", "evaluated", "compared", "tracked", "naive")
"""What ``shapes.py`` has to compare with."""


class Spent(NamedTuple):
    """What a command took.

    Attributes:
        cpu: seconds of the process and its workers.
        wall: seconds by the clock.
        memory: MB of the process at most, its packages included.
        printed: what a script returned.
    """

    cpu: float
    wall: float
    memory: float
    printed: float | None


class Timed(NamedTuple):
    """What a command took in each turn, and on the smallest file."""

    turns: list[Spent]
    starts: list[Spent]

    @property
    def cpu(self) -> list[float]:
        """The process time of each turn, without the start."""
        start = min(one.cpu for one in self.starts)
        return [max(one.cpu - start, 1e-4) for one in self.turns]

    def ratio(self, other: Timed) -> tuple[float, float, float]:
        """Its process time as a multiple of another's: of the best turns; least, most of a turn."""
        each = [one / two for one, two in zip(self.cpu, other.cpu, strict=True)]
        return min(self.cpu) / min(other.cpu), min(each), max(each)

    @property
    def wall(self) -> float:
        return min(one.wall for one in self.turns) - min(one.wall for one in self.starts)

    @property
    def memory(self) -> float:
        return max(one.memory for one in self.turns)


class Process:
    """A process that forks for a command when it is asked to.

    Args:
        first: a command that imports what others need.
    """

    def __init__(self, first: Words) -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "measure.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            text=True,
        )
        self._send(first)

    def _send(self, words: Words) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps([*words]) + "\n")
        self._child.stdin.flush()

    def spend(self, words: Words) -> Spent:
        """Runs a command."""
        self._send(words)
        assert self._child.stdout is not None
        return Spent(*json.loads(self._child.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self._child.communicate()


def in_turns(
    commands: Mapping[str, Words], smallest: Mapping[str, Words], turns: int
) -> dict[str, Timed]:
    """Runs commands in turns, since whatever else a machine does only ever adds.

    Args:
        commands: name → the command.
        smallest: name → the same command on the smallest file of the kind.
        turns: how often each is run.
    """
    found = {name: Timed([], []) for name in commands}
    processes = {name: Process(words) for name, words in smallest.items()}
    for _ in range(turns):
        for name, process in processes.items():
            found[name].starts.append(process.spend(smallest[name]))
            found[name].turns.append(process.spend(commands[name]))
    for process in processes.values():
        process.close()
    return found


def _run(words: Words) -> float | None:
    import shapes

    if words[0] in SCRIPTS:
        return getattr(shapes, words[0])(*words[1:])
    from grpo_cli.commands.main import main

    sys.argv = ["grpo", *words]
    with contextlib.suppress(SystemExit):
        main()
    return None


def _used() -> float:
    every = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, every))


def _peak() -> float:
    """MB; ``getrusage`` would count what the parent had when it started this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Runs the command of each line of standard input in a fork, and prints what it took.

    The first command runs here, so that forks have everything imported and an untouched heap.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    gc.disable()
    _run(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        cpu, wall = _used(), time.perf_counter()
        printed = _run(json.loads(line))
        took = _used() - cpu, time.perf_counter() - wall, _peak(), printed
        answers.write(json.dumps(took) + "\n")
        answers.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
