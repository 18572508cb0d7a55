"""How time and memory of every command grow with twelve shapes of input: at n, and at 2n.

    python tests/benchmarks/scaling.py                     # small sizes, a few minutes
    python tests/benchmarks/scaling.py --times 10          # ten times as large
    python tests/benchmarks/scaling.py --only groups,steps --commands eval,show

Each cell is the ratio of processor times (without what a tiny input takes) and of peak memory. It
is marked where the time grows by more than 2.3, or the memory by more than 1.2 beyond 100 MB (by 2
where the input is one record, which is in memory as a whole); then the exit code is 1. What takes
less than half a second, or 100 MB, says nothing, and passes. A cell beyond a limit is measured
three times, and the least of each counts. A star marks a stated exception. Each cell's seconds and
megabytes (of a tiny input, at n, at 2n) go to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
MOST_TIME, MOST_MEMORY, MOST_OF_ONE = 2.3, 1.2, 2.0
SECONDS, MEGABYTES = 0.5, 100.0
PATIENCE = 60  # seconds of the processor
TIMES = 3

Record = dict[str, Any]


def record(number: int, lengths: list[int], **more: Any) -> Record:
    """A record of responses of these lengths; its numbers repeat, which no command notices."""
    draw = random.Random(number)
    some = [round(-draw.expovariate(1.0) - 1e-3, 4) for _ in range(997)]
    old = [[some[at % 997] for at in range(length)] for length in lengths]
    new = [[round(one - 0.01 * (at % 3), 4) for at, one in enumerate(row)] for row in old]
    rewards = [float(at % 2) for at in range(len(lengths))]
    columns = {"log_probs_new": new, "log_probs_old": old, "rewards": rewards}
    return {"id": number, "step": 0, **columns, "expected": {"loss": 0.125}, **more}


class Shape(NamedTuple):
    """A shape of input.

    Attributes:
        make: the records of a size ``n``, as an expression.
        size: the smaller of the two sizes that are compared.
        flags: what all commands take for it.
        table: whether it is a Parquet file of a row group for each record.
        alone: whether it is one record.
    """

    make: str
    size: int
    flags: tuple[str, ...] = ()
    table: bool = False
    alone: bool = False


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_bytes())
SHAPES = {name: Shape(**one) for name, one in _TABLE["shapes"].items()}
COMMANDS: dict[str, list[str]] = _TABLE["commands"]
_VERIFIED = "1.2 kB a record: the answer lists what each record expects"
_REPORTED = "1.8 kB a group: the page lists every group of the steps that it keeps"
_PAIRED = "1.3 kB a record and run: the records of a step are in memory, where they are paired"
EXCEPTIONS = {
    (
        "settings",
        "match",
    ): "24 kB a record: each convention listed keeps the signatures of settings",
    ("records", "verify"): _VERIFIED,
    ("ids", "verify"): _VERIFIED,
    ("records", "report"): _REPORTED,
    ("ids", "report"): _REPORTED,
    ("records", "diff"): _PAIRED,
    ("ids", "diff"): _PAIRED,
}
"""Cells that are beyond a limit for a reason: shape and command → it. They pass."""
_OF_ERRORS = {"eval", "eval tokens", "eval jobs", "check", "convert", "trend", "verify", "compare"}


def write(shape: Shape, size: int, path: Path) -> None:
    """The file of a shape."""
    records = eval(shape.make, globals() | {"n": size})
    if not shape.table:
        with path.open("w") as stream:
            stream.writelines(json.dumps(one) + "\n" for one in records)
        return
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist(list(records))
    parquet.write_table(table, path, row_group_size=1)


class Cost(NamedTuple):
    """What a run took: seconds of the processor, megabytes at their most, and its exit code."""

    seconds: float
    megabytes: float
    code: int


def run(words: tuple[str, ...], folder: Path) -> Cost | None:
    """Runs a command with its workers; None where it takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "printed").open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE + 1)),
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, process.returncode)


def measured(name: str, shape: Shape, times: float, commands: list[str]) -> Iterator[str]:
    """The cells of a shape's row; those beyond a limit have a mark."""
    most = MOST_OF_ONE if shape.alone else MOST_MEMORY
    with tempfile.TemporaryDirectory(prefix="scaling-") as place:
        folder = Path(place)
        size = int(shape.size * times)
        paths = [folder / f"{at}.{'parquet' if shape.table else 'jsonl'}" for at in range(3)]
        for path, count in zip(paths, (2, size, 2 * size), strict=True):
            write(shape, count, path)
        for command in commands:
            if shape.flags and command not in _OF_ERRORS:
                yield "–"
                continue
            costs: list[Cost | None] = []
            text = "!"
            for _ in range(TIMES):
                if text.endswith("!"):
                    again = [run(_words(command, shape, path, folder), folder) for path in paths]
                    costs = [_least(*both) for both in zip(costs or again, again, strict=True)]
                    print(f"{name}, {command}: {costs}", file=sys.stderr, flush=True)
                    text = cell(costs, most)
            yield text.replace("!", "*") if (name, command) in EXCEPTIONS else text


def _least(first: Cost | None, second: Cost | None) -> Cost | None:
    if first is None or second is None:
        return first or second
    seconds = min(first.seconds, second.seconds)
    return Cost(seconds, min(first.megabytes, second.megabytes), second.code)


def _words(command: str, shape: Shape, path: Path, folder: Path) -> tuple[str, ...]:
    places = {"FILE": str(path), "OUT": str(folder / "out.html")}
    return (*(places.get(word, word) for word in COMMANDS[command]), *shape.flags)


def cell(costs: list[Cost | None], most: float) -> str:
    """``1.9 1.10``: the ratios of time and memory; the code where a run fails.

    Args:
        costs: of the tiny input, and of both sizes.
        most: the ratio of memory that passes.
    """
    start, half, whole = costs
    if start is None or half is None or whole is None:
        return f"> {PATIENCE} s !"
    if whole.code in (2, 70) or whole.code < 0:
        return f"code {whole.code} !"
    least = max(half.seconds - start.seconds, 0.05)
    slow = (whole.seconds - start.seconds) / least
    large = whole.megabytes / half.megabytes
    text = f"{slow:.1f} {large:.2f}"
    wrong = slow > MOST_TIME and whole.seconds - start.seconds > SECONDS
    return text + " !" * (wrong or (large > most and whole.megabytes > MEGABYTES))


def main() -> None:
    """Prints the table; exits with 1 where a cell is marked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=float, default=1.0, help="of the sizes")
    parser.add_argument("--only", default=",".join(SHAPES), help="shapes")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    given = parser.parse_args()
    commands = given.commands.split(",")
    print("".join(f"{name:>14}" for name in ("", "n", *commands)), flush=True)
    wrong = False
    for name in given.only.split(","):
        shape = SHAPES[name]
        print(f"{name:>14}{int(shape.size * given.times):>14}", end="", flush=True)
        for text in measured(name, shape, given.times, commands):
            wrong |= text.endswith("!")
            print(f"{text:>14}", end="", flush=True)
        print()
    for (name, command), reason in EXCEPTIONS.items():
        print(f"* {name}, {command}: {reason}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
