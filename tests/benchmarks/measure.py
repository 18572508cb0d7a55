"""Commands timed in turns, each in a process of its own, without its start.

A process first runs the command on the smallest file of the kind, so that everything is imported,
then on that again, and then on the file that is timed; the difference of the last two counts.
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


def spend(words: Words, smallest: Words) -> Spent:
    """Runs a command; what it takes on the smallest file is not counted."""
    given = json.dumps([smallest, words])
    child = [sys.executable, str(HERE / "measure.py"), given]
    done = subprocess.run(child, capture_output=True, env=ENVIRONMENT, check=True)
    return Spent(*json.loads(done.stderr.splitlines()[-1]))


class Timed(NamedTuple):
    """What a command took in each turn."""

    turns: list[Spent]

    def ratio(self, other: Timed) -> tuple[float, float, float]:
        """Its process time as a multiple of another's: of the best turns; least, most of a turn."""
        pairs = [(one.cpu, two.cpu) for one, two in zip(self.turns, other.turns, strict=True)]
        each = [one / two for one, two in pairs]
        return min(one for one, _ in pairs) / min(two for _, two in pairs), min(each), max(each)

    @property
    def wall(self) -> float:
        return min(one.wall for one in self.turns)

    @property
    def memory(self) -> float:
        return max(one.memory for one in self.turns)


def in_turns(
    commands: Mapping[str, Words], smallest: Mapping[str, Words], turns: int
) -> dict[str, Timed]:
    """Runs commands in turns, since whatever else a machine does only ever adds.

    Args:
        commands: name → the command.
        smallest: name → the same command on the smallest file of the kind.
        turns: how often each is run.
    """
    found: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, words in commands.items():
            found[name].append(spend(words, smallest[name]))
    return {name: Timed(spent) for name, spent in found.items()}


def _run(words: Words) -> float | None:
    import shapes

    if words[0] in SCRIPTS:
        return getattr(shapes, words[0])(*words[1:])
    from grpo_cli.commands.main import main

    sys.argv = ["grpo", *words]
    with contextlib.suppress(SystemExit):
        main()
    return None


def _timed(words: Words) -> tuple[float, float, float | None]:
    """Seconds of the process and its workers, seconds by the clock, and what a script returned."""
    cpu, wall = _used(), time.perf_counter()
    printed = _run(words)
    return _used() - cpu, time.perf_counter() - wall, printed


def _used() -> float:
    every = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, every))


def _peak() -> float:
    """MB; ``getrusage`` would count what the parent had when it started this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Prints what a command took, as the last line of standard error."""
    gc.disable()
    smallest, words = json.loads(sys.argv[1])
    _run(smallest)
    (least, least_wall, _), (cpu, wall, printed) = _timed(smallest), _timed(words)
    took = max(cpu - least, 1e-4), max(wall - least_wall, 1e-4)
    sys.stderr.write("\n" + json.dumps([*took, _peak(), printed]) + "\n")


if __name__ == "__main__":
    main()
