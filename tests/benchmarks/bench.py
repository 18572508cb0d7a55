"""Prints what ``grpo`` costs on dumps as frameworks write them; nothing is asserted.

    python tests/benchmarks/bench.py                        # 40 MB a shape, about an hour
    python tests/benchmarks/bench.py --megabytes 4          # some minutes
    python tests/benchmarks/bench.py --only trl,verl --turns 5

A row is a shape of ``shapes.py``. Times are those of processes, worker processes included, without
what the same command takes on the smallest file of the shape; each turn runs every command once,
and a ratio is that of the best turns (in brackets the least and the greatest within a turn):

- ``eval × loop``: ``eval --level batch --jobs 1`` against decoding the file and nothing else;
- ``naive``: a script of one's own against ``eval``; ``by the clock, two jobs``: against
  ``--jobs 2``, in wall time;
- other commands, with ``--jobs 1``, against ``eval``; ``MB``: the peak of ``eval`` and of all.

The script has to print the J that ``eval`` prints.
"""

from __future__ import annotations

import argparse
import compileall
import sys
import tempfile
from pathlib import Path

from measure import HERE, ROOT, Timed, grpo, in_turns, spend
from shapes import SHAPES, write

OTHERS = ("check", "trend", "diff", "report", "verify")
_EXPECTING = ("trl", "trl-short", "verl")
"""Shapes whose records say what the loss was."""


def commands(name: str, path: Path) -> dict[str, list[str]]:
    """Every command that is timed on a dump."""
    shape, file = SHAPES[name], str(path)
    flags = (*shape.flags, "-q")
    one = (*flags, "--jobs", "1")
    script = [sys.executable, str(HERE / "shapes.py")]
    found = {
        "loop": [*script, "loop", name, file],
        "naive": [*script, "naive", name, file],
        "eval": grpo("eval", file, "--level", "batch", *one),
        "jobs": grpo("eval", file, "--level", "batch", *flags, "--jobs", "2"),
    }
    others = [*shape.commands, *(["verify"] if name in _EXPECTING else [])]
    more = {
        **dict.fromkeys(OTHERS, ("--jobs", "1")),
        "diff": (file,),
        "report": ("-o", f"{file}.html", "--jobs", "1"),
    }
    return found | {other: grpo(other, file, *more[other], *flags) for other in others}


def agree(name: str, path: Path) -> None:
    """Stops where the script and ``eval`` print another J."""
    wanted = float(spend(commands(name, path)["naive"]).printed)
    only = grpo("eval", str(path), "--level", "batch", "--only", "objective", "-q")
    value = float(spend([*only, *SHAPES[name].flags]).printed)
    if abs(value - wanted) > 1e-9 * abs(wanted):
        raise SystemExit(f"{name}: the script prints {wanted}, eval {value}")


def row(name: str, found: dict[str, Timed]) -> str:
    """A line of the table."""

    def ratio(mine: str, other: str) -> str:
        if mine not in found:
            return ""
        best, least, most = found[mine].ratio(found[other])
        return f"{best:.1f} ({least:.1f}–{most:.1f})"

    clock = min(found["naive"].wall) / min(found["jobs"].wall)
    memory = f"{found['eval'].memory:.0f}, {max(one.memory for one in found.values()):.0f}"
    cells = [ratio("eval", "loop"), ratio("naive", "eval"), f"{clock:.1f}"]
    cells += [ratio(other, "eval") for other in OTHERS] + [memory]
    return f"| {SHAPES[name].title} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default=",".join(SHAPES), help="names of shapes")
    given = parser.parse_args()
    compileall.compile_dir(ROOT / "grpo_cli", quiet=1)  # as pip installs it
    names = ["shape", "eval × loop", "naive", "by the clock, two jobs", *OTHERS, "MB"]
    print(f"| {' | '.join(names)} |")
    print("|---" + "|---:" * (len(names) - 1) + "|")
    for name in given.only.split(","):
        suffix = SHAPES[name].suffix
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, Path(folder) / f"dump{suffix}", given.megabytes)
            smallest = write(name, Path(folder) / f"smallest{suffix}", 0.0)
            agree(name, path)
            found = in_turns(commands(name, path), commands(name, smallest), given.turns)
        print(row(name, found), flush=True)


if __name__ == "__main__":
    main()
