"""Prints how fast ``grpo`` is beside its peers, as ratios taken in one run; nothing is asserted.

    python tests/benchmarks/bench.py                       # about half an hour, 1 GB
    python tests/benchmarks/bench.py --small               # a tenth of the records, fewer turns
    python tests/benchmarks/bench.py --only peers,parquet  # one table, or some of them
    python tests/benchmarks/bench.py --only scaling --gigabytes 0.1,0.5,2,8

Tables: ``peers`` (scripts, numba, torch, duckdb and polars on the same JSON, each number checked
against ours), ``parquet`` (the same on Parquet), ``commands`` and ``match`` (against ``eval``),
``levels`` (what rows cost), ``start``, ``memory``, ``jobs``, ``profile`` (stage by stage),
``scaling``. A peer that is not installed is named; numpy, orjson and pyarrow have to be.

Each pair is run in turns. A ratio is that of the best process times, threads and worker processes
included; in brackets the least and the greatest of a turn. Times on a shared machine are noisy.
"""

from __future__ import annotations

import argparse
import compileall
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import dumps
from measure import ROOT, Spent, grpo, peer, ratio, spend

BATCH = ("--level", "batch", "--jobs", "1", "-q")
BY_UID = ("--group-by", "uid")


class Bench:
    """The tables.

    Args:
        folder: where the files are.
        small: whether they are a tenth as long.
        turns: how often each command is run.
        gigabytes: the sizes of the table of scaling.
    """

    def __init__(self, folder: Path, *, small: bool, turns: int, gigabytes: list[float]) -> None:
        self.turns, self.gigabytes, self.folder = turns, gigabytes, folder
        scale = 10 if small else 1
        self.long = dumps.write(folder / "long.jsonl", 900 // scale, 1000)
        self.short = dumps.write(folder / "short.jsonl", 20_000 // scale, 8)
        self.tiny = dumps.write(folder / "tiny.jsonl", 1, 1)

    def show(self, what: str, above: list[str], below: list[str], goal: str = "") -> None:
        found = ratio(above, below, self.turns)
        print(
            f"| {what} | {found.cpu:.2f} ({found.least:.2f}–{found.most:.2f}) | {found.wall:.2f} "
            f"| {goal} |", flush=True,
        )  # fmt: skip

    def peers(self) -> None:
        """On JSON: `eval --level batch --jobs 1` against the floor, peers against it."""
        for path in (self.long, self.short):
            ours = grpo("eval", str(path), *BATCH)
            goal = "≤ 1.3" if path is self.long else "≤ 2.0"
            self.show(f"eval / `orjson.loads`, {path.stem}", ours, peer("orjson_loop", path), goal)
            self.beside(path, ours, "numpy_json numpy_orjson torch numba jax duckdb polars")

    def beside(self, path: Path, ours: list[str], names: str) -> None:
        """Each peer against ours, its number against ours."""
        wanted = float(spend([*ours, "--only", "objective"]).said)
        for name in names.split():
            package = name.partition("_")[0]
            if find_spec(package) is None:
                print(f"| {name} | not installed | | |")
                continue
            value = float(spend(peer(name, path)).said.split("(")[-1].rstrip(")"))
            if abs(value - wanted) > 1e-9 * abs(wanted):
                raise SystemExit(f"{name} computes {value}, not {wanted}")
            self.show(f"{name} / eval, {path.name}", peer(name, path), ours)

    def parquet(self) -> None:
        """On Parquet: lists of lists, and rows of one response each with `--group-by`."""
        for path in (self.short, self.long):
            nested, rows = dumps.tables(path)
            for table, more, goal in ((nested, (), "≤ 1.6"), (rows, BY_UID, "≤ 1.8")):
                ours = grpo("eval", str(table), *more, *BATCH)
                what = f"eval / `pyarrow.parquet.read_table`, {table.name}"
                self.show(what, ours, peer("pyarrow_read", table), goal)
                names = "duckdb polars" if table is nested else "polars_rows"
                self.beside(table, ours, names)

    def commands(self) -> None:
        """Other commands against `eval`."""
        for path in (self.long, self.short):
            goal, ours = "≤ 2 / 2.5", grpo("eval", str(path), *BATCH)
            others = {
                "compare": ("--variants", "grpo,dr,dapo,gspo", "--jobs", "1"),
                "convert": ("--jobs", "1", "-o", str(self.folder / "out.jsonl")),
                "convert ": ("-o", str(self.folder / "out.parquet")),
                "check": ("--jobs", "1"),
                "verify": ("--jobs", "1"),
                "split": ("-n", "4", "--jobs", "1"),
            }
            expecting = dumps.expecting(path)
            for name, more in others.items():
                read = expecting if name == "verify" else path
                what = f"{name.strip()} {more[-1].rpartition('/')[2]} / eval, {path.stem}"
                self.show(what, grpo(name.strip(), str(read), *more), ours, goal)

    def match(self) -> None:
        """The search for the conventions of a logged loss, which nothing gives: one turn."""
        path = dumps.write(self.folder / "match.jsonl", 100, 100)
        ours = grpo("eval", str(path), *BATCH)
        found = ratio(grpo("match", str(path), "--loss", "0.000182", "--jobs", "1"), ours, 1)
        print(f"| match / eval, 100 × 8 × ~100 tokens | {found.cpu:.1f} | {found.wall:.1f} | ≤ 5 |")

    def levels(self) -> None:
        """What rows cost: `--level token` against `--level batch`."""
        ways = {"jsonl --nest": "≤ 1.8", "jsonl": "", "csv": "≤ 2.5", "parquet": "≤ 1.4"}
        for path in (self.long, self.short):
            ours = grpo("eval", str(path), *BATCH)
            for way, goal in ways.items():
                out = ("--format", *way.split(), "-o", str(self.folder / "rows"))
                token = grpo("eval", str(path), "--level", "token", "--jobs", "1", "-q", *out)
                goal = goal if path is self.long else ""
                self.show(f"token level, {way} / batch level, {path.stem}", token, ours, goal)

    def start(self) -> None:
        """What it takes to start, against importing the four packages."""
        packages = [sys.executable, "-c", "import typer, numpy, orjson, rich, rich.table"]
        tiny = grpo("eval", str(self.tiny), *BATCH)
        self.show("eval of a tiny file / four imports", tiny, packages, "≤ 1.35")
        self.show("grpo --version / four imports", grpo("--version"), packages)

    def jobs(self) -> None:
        """Wall time of `--jobs 1` against several."""
        one = grpo("eval", str(self.long), *BATCH)
        for jobs in (2, 4):
            if jobs <= (os.cpu_count() or 1):
                many = grpo("eval", str(self.long), "--level", "batch", "--jobs", str(jobs), "-q")
                found = ratio(one, many, self.turns)
                print(f"| --jobs 1 / --jobs {jobs}, long | | {found.wall:.2f} | |", flush=True)

    def memory(self) -> None:
        """Peak resident MB of the largest process."""
        rows = ("--level", "token", "-f", "parquet", "-o", str(self.folder / "rows.parquet"))
        for path in (self.short, self.long):
            for more in (BATCH, (*rows, "--jobs", "1", "-q")):
                found = spend(grpo("eval", str(path), *more))
                print(f"| eval {' '.join(more[:4])}, {path.stem} | {found.memory:.0f} MB | | |")
            found = spend(grpo("convert", str(path), "-o", str(self.folder / "out.parquet")))
            print(f"| convert to Parquet, {path.stem} | {found.memory:.0f} MB | | |", flush=True)

    def profile(self) -> None:
        """Stage by stage, in process time of one process."""
        sys.path.insert(0, str(ROOT))
        from stages import profile

        for path in (self.long, self.short, *dumps.tables(self.short)[:1]):
            found = list(profile(path, self.turns))
            whole = sum(seconds for _, seconds in found)
            for name, seconds in found:
                print(f"| {path.name}: {name} | {seconds / whole:.0%} | {seconds:.3f} s | |")

    def scaling(self) -> None:
        """Length against time and memory."""
        for gigabytes, path in self.lengths():
            for jobs in (1, os.cpu_count() or 1):
                arguments = (str(path), "--level", "batch", "--jobs", str(jobs), "-q")
                found: Spent = spend(grpo("eval", *arguments))
                speed = path.stat().st_size / 1e6 / found.wall
                print(
                    f"| {gigabytes:g} GB, --jobs {jobs} | {found.wall:.1f} s, {speed:.0f} MB/s "
                    f"| {found.memory:.0f} MB | |", flush=True,
                )  # fmt: skip
            path.unlink()

    def lengths(self) -> Iterator[tuple[float, Path]]:
        for gigabytes in self.gigabytes:
            path = self.folder / f"{gigabytes}.jsonl"
            with path.open("wb") as stream:  # what is held here would count as its child's memory
                while stream.tell() < gigabytes * 1e9:
                    with self.long.open("rb") as lines:
                        stream.writelines(islice(lines, 90))
            yield gigabytes, path


TABLES = ["start", "peers", "parquet", "levels", "commands", "jobs", "memory", "profile", "scaling"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--turns", type=int, help="default 5, or 3 of small files")
    parser.add_argument("--only", default=",".join(TABLES), help="tables")
    parser.add_argument("--gigabytes", default="0.1,0.5,2", help="sizes of the table of scaling")
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "grpo_cli", quiet=1)  # as whatever pip installs
    turns = options.turns or (3 if options.small else 5)
    sizes = list(map(float, options.gigabytes.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), small=options.small, turns=turns, gigabytes=sizes)
        for name in options.only.split(","):
            table = getattr(bench, name)
            print(
                f"\n{table.__doc__}\n\n| {name} | ratio of process times | of wall times | goal |"
            )
            print("|---|---:|---:|---:|")
            table()


if __name__ == "__main__":
    main()
