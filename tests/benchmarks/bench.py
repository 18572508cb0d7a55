"""Prints the tables of ``grpo help speed``; nothing is asserted.

    python tests/benchmarks/bench.py                        # 40 MB a shape, about half an hour
    python tests/benchmarks/bench.py --only trl,verl --turns 7
    python tests/benchmarks/bench.py --table match          # whole processes, on 25 MB

A row is a shape of ``shapes.py``. Times are of processes, their workers included, without their
start; each turn runs every command once, and a ratio is that of the best turns: on a busy machine
it varies by 0.1 where that within a turn, in brackets, varies by 1.

``eval``, as multiples of a loop that decodes the file and does nothing else:

- ``eval``: ``eval --level batch --jobs 1``; ``reading``: decoding, and the columns that are read as
  arrays, checked (``shapes.columns``); ``least``: J of them as well (``shapes.evaluated``);
- ``script``: one of one's own, which has to return the same J; ``script ÷ eval``: against ``eval``;
  ``two jobs``: against ``--jobs 2``, by the clock, the start of the workers included;
- ``MB``: the peak of ``eval``, and of all commands.

Other commands, with ``--jobs 1``, as multiples of ``eval``; ``causes`` is ``verify`` as another
variant than the records', so that each differs. In brackets the least: ``check`` and ``trend`` are
``shapes.compared`` and ``shapes.tracked``; ``diff`` decodes two runs and makes arrays of their
log-probs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import ENVIRONMENT, SCRIPTS, Process, Timed, in_turns
from shapes import SHAPES, totals, write

OTHERS = ("check", "trend", "diff", "explain", "verify", "causes", "report")
_EXPECTING = {"trl": "trl/dr_grpo", "trl-short": "trl/dr_grpo", "verl": "verl/gspo"}
"""Shapes whose records say what the loss was → a variant with another loss."""


def commands(name: str, path: Path) -> dict[str, list[str]]:
    """Every command that is timed on a dump."""
    shape, file = SHAPES[name], str(path)
    one = ("--jobs", "1")
    more = dict.fromkeys(OTHERS, (file, *one))
    more |= {"diff": (file, file), "report": (file, "-o", f"{file}.html", *one)}
    more |= {"explain": (file, "--batch", "input")}
    more |= {"causes": (file, "-v", _EXPECTING.get(name, ""), *one)}
    others = [*shape.commands, *(["verify", "causes"] if name in _EXPECTING else [])]
    ours = {
        "eval": ["eval", file, "--level", "batch", *one],
        "jobs": ["eval", file, "--level", "batch", "--jobs", "2"],
        **{other: ["verify" if other == "causes" else other, *more[other]] for other in others},
    }
    needless = {"compared"} if shape.suffix == ".parquet" else set()
    needless |= set() if name == "steps" else {"tracked"}
    scripts = {what: [what, name, file] for what in SCRIPTS if what not in needless}
    return scripts | {what: [*words, *shape.flags, "-q"] for what, words in ours.items()}


def agree(name: str, path: Path) -> None:
    """Stops where the script computes another J than ``eval``, or the least other totals."""
    words = commands(name, path)
    found = json.loads(_printed([*words["eval"], "--json"]))["total"]
    process = Process(words["naive"])
    script = process.spend(words["naive"]).printed or 0.0
    process.close()
    for what, value in [("objective", script), *totals(name, str(path)).items()]:
        if abs(found[what] - value) > 1e-9 * abs(value):
            raise SystemExit(f"{name}: {what} is {value} by a script, {found[what]} by eval")


def _printed(words: list[str]) -> bytes:
    command = [sys.executable, "-m", "grpo_cli", *words]
    return subprocess.run(command, capture_output=True, env=ENVIRONMENT, check=True).stdout


def rows(name: str, found: dict[str, Timed]) -> tuple[str, str]:
    """A line of either table."""
    cpu = {what: min(timed.cpu) for what, timed in found.items()}

    def ratio(mine: str, other: str) -> str:
        best, least, most = found[mine].ratio(found[other])
        return f"{best:.1f} ({least:.1f}–{most:.1f})"

    least = {"diff": 2 * cpu["columns"]}
    least |= {
        of: cpu[one] for of, one in (("check", "compared"), ("trend", "tracked")) if one in cpu
    }
    cells = [ratio("eval", "loop")]
    cells += [f"{cpu[script] / cpu['loop']:.1f}" for script in ("columns", "evaluated", "naive")]
    cells += [ratio("naive", "eval")]
    cells += [f"{found['naive'].wall / found['jobs'].wall:.1f}"]
    cells += [f"{found['eval'].memory:.0f}, {max(one.memory for one in found.values()):.0f}"]
    others = [
        f"{cpu[other] / cpu['eval']:.1f}"
        + (f" ({least[other] / cpu['eval']:.1f})" if other in least else "")
        if other in cpu
        else ""
        for other in OTHERS
    ]
    title = SHAPES[name].title
    return f"| {title} | {' | '.join(cells)} |", f"| {title} | {' | '.join(others)} |"


def print_tables(names: list[str], megabytes: float, turns: int) -> None:
    """Prints the rows of ``eval`` as they are measured, and then those of other commands."""
    columns = ["shape", "eval", "reading", "least", "script", "script ÷ eval", "two jobs", "MB"]
    _print_head(columns)
    others = []
    for name in names:
        suffix = SHAPES[name].suffix
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, Path(folder) / f"dump{suffix}", megabytes)
            smallest = write(name, Path(folder) / f"smallest{suffix}", 0.0)
            agree(name, smallest)
            found = in_turns(commands(name, path), commands(name, smallest), turns)
            line, other = rows(name, found)
        others.append(other)
        print(line, flush=True)
    print()
    _print_head(["shape", *OTHERS])
    print("\n".join(others))


def _print_head(columns: list[str]) -> None:
    print(f"| {' | '.join(columns)} |\n|---{'|---:' * (len(columns) - 1)}|", flush=True)


def print_match(names: list[str], megabytes: float, turns: int) -> None:
    """Prints what ``match`` takes, as multiples of ``eval`` with its start, in whole processes.

    ``given``: of the loss that DAPO gives; ``none``: of a number that no convention gives;
    ``two tokens``: of the loss of two tokens, against ``eval`` of them.
    """
    _print_head(["shape", "given", "none", "two tokens"])
    two = (
        b'{"log_probs_new": [[-1.0], [-2.0]], "log_probs_old": [[-1.1], [-1.9]], "rewards": [1, 0]}'
    )
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, Path(folder) / f"dump{SHAPES[name].suffix}", megabytes)
            tiny = Path(folder) / "two.json"
            tiny.write_bytes(two)
            files = {"given": (path, "dapo"), "two tokens": (tiny, "dapo"), "none": (path, "")}
            cells = {}
            for what, (file, row) in files.items():
                own = [str(file), *(SHAPES[name].flags if file is path else ())]
                asked = ["eval", *own, "-v", row, "--only", "loss", "--level", "batch", "-q"]
                number = _printed(asked).decode().strip() if row else "0.0123"
                jobs = ["--jobs", "1", "-q"]
                words = ["match", *own, f"--loss={number}", *jobs]
                took = [
                    [_process(each) for each in (["eval", *own, "--level", "batch", *jobs], words)]
                    for _ in range(turns)
                ]
                least = [min(each) for each in zip(*took, strict=True)]
                cells[what] = f"{least[1] / least[0]:.1f}"
        each = " | ".join(cells[what] for what in ("given", "none", "two tokens"))
        print(f"| {SHAPES[name].title} | {each} |", flush=True)


def _process(words: list[str]) -> float:
    """Seconds of the processor that a whole process takes."""
    command = [sys.executable, "-m", "grpo_cli", *words]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=ENVIRONMENT)
    used = os.wait4(process.pid, 0)[2]
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, help="of each shape; 40, and 25 for match")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--only", default="", help="names of shapes")
    parser.add_argument("--table", choices=("all", "match"), default="all")
    given = parser.parse_args()
    if given.table == "match":
        names = given.only or "trl,verl"
        print_match(names.split(","), given.megabytes or 25.0, given.turns)
    else:
        names = given.only or ",".join(SHAPES)
        print_tables(names.split(","), given.megabytes or 40.0, given.turns)


if __name__ == "__main__":
    main()
