"""Prints what ``grpo`` costs on dumps as frameworks write them; nothing is asserted.

    python tests/benchmarks/bench.py                        # 40 MB a shape, about half an hour
    python tests/benchmarks/bench.py --megabytes 4          # some minutes
    python tests/benchmarks/bench.py --only trl,verl --turns 5
    python tests/benchmarks/bench.py --table commands       # other commands against eval alone

A row is a shape of ``shapes.py``. Times are of processes, their workers included, without their
start; each turn runs every command once, and a ratio is that of the best turns (in brackets the
least and the greatest within a turn):

- ``eval × loop``: ``eval --level batch --jobs 1`` against decoding the file and nothing else;
- ``naive``: a script of one's own against ``eval``; ``by the clock, two jobs``: against
  ``--jobs 2``, in wall time, the start of the workers included;
- other commands, with ``--jobs 1``, against ``eval``; ``causes`` is ``verify`` as another variant
  than the records', so that each differs; ``MB``: the peak of ``eval`` and of all.

The script has to return the J that ``eval`` prints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import ENVIRONMENT, Timed, in_turns, spend
from shapes import SHAPES, write

OTHERS = ("check", "trend", "diff", "explain", "report", "match", "verify", "causes")
_EXPECTING = {"trl": "trl/dr_grpo", "trl-short": "trl/dr_grpo", "verl": "verl/gspo"}
"""Shapes whose records say what the loss was → a variant with another loss."""
_COMMAND = {"causes": "verify"}
_ALONE = ("loop", "naive", "jobs")
"""What only the table of ``eval`` needs."""


def commands(name: str, path: Path) -> dict[str, list[str]]:
    """Every command that is timed on a dump."""
    shape, file = SHAPES[name], str(path)
    one = ("--jobs", "1")
    more = dict.fromkeys(OTHERS, (file, *one))
    more |= {"diff": (file, file), "report": (file, "-o", f"{file}.html", *one)}
    more |= {"explain": (file, "--batch", "input"), "match": (file, "--loss", "0.0123", *one)}
    more |= {"causes": (file, "-v", _EXPECTING.get(name, ""), *one)}
    others = [*shape.commands, *(["verify", "causes"] if name in _EXPECTING else [])]
    found = {
        "loop": ["loop", name, file],
        "naive": ["naive", name, file],
        "eval": ["eval", file, "--level", "batch", *one],
        "jobs": ["eval", file, "--level", "batch", "--jobs", "2"],
        **{other: [_COMMAND.get(other, other), *more[other]] for other in others},
    }
    ours = {what: [*words, *shape.flags, "-q"] for what, words in found.items()}
    return ours | {what: found[what] for what in ("loop", "naive")}


def agree(name: str, path: Path) -> None:
    """Stops where the script and ``eval`` compute another J."""
    words = commands(name, path)
    wanted = spend(words["naive"], words["naive"]).printed or 0.0
    command = [sys.executable, "-m", "grpo_cli", *words["eval"], "--only", "objective"]
    value = float(subprocess.run(command, capture_output=True, env=ENVIRONMENT, check=True).stdout)
    if abs(value - wanted) > 1e-9 * abs(wanted):
        raise SystemExit(f"{name}: the script computes {wanted}, eval {value}")


def row(name: str, found: dict[str, Timed]) -> str:
    """A line of the table."""

    def ratio(mine: str, other: str) -> str:
        if mine not in found:
            return ""
        best, least, most = found[mine].ratio(found[other])
        return f"{best:.1f} ({least:.1f}–{most:.1f})"

    memory = f"{found['eval'].memory:.0f}, {max(one.memory for one in found.values()):.0f}"
    cells = []
    if "naive" in found:
        clock = found["naive"].wall / found["jobs"].wall
        cells = [ratio("eval", "loop"), ratio("naive", "eval"), f"{clock:.1f}"]
    cells += [ratio(other, "eval") for other in OTHERS] + [memory]
    return f"| {SHAPES[name].title} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default=",".join(SHAPES), help="names of shapes")
    parser.add_argument("--commands", default=",".join(OTHERS), help="commands besides eval")
    parser.add_argument("--table", choices=("all", "commands"), default="all")
    given = parser.parse_args()
    whole = ["eval × loop", "naive", "by the clock, two jobs"] if given.table == "all" else []
    names = ["shape", *whole, *OTHERS, "MB"]
    print(f"| {' | '.join(names)} |")
    print("|---" + "|---:" * (len(names) - 1) + "|")
    for name in given.only.split(","):
        suffix = SHAPES[name].suffix
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, Path(folder) / f"dump{suffix}", given.megabytes)
            smallest = write(name, Path(folder) / f"smallest{suffix}", 0.0)
            agree(name, smallest)
            left_out = {*OTHERS} - {*given.commands.split(",")}
            left_out |= set() if whole else {*_ALONE}
            wanted = {
                what: one for what, one in commands(name, path).items() if what not in left_out
            }
            found = in_turns(wanted, commands(name, smallest), given.turns)
        print(row(name, found), flush=True)


if __name__ == "__main__":
    main()
