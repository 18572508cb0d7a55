"""The fuzzer: N made-up inputs through every command, in process, on several cores.

    python tests/fuzz/run.py --inputs 100000 --seed 7 --jobs 4    # some minutes
    python tests/fuzz/run.py --seed 7 --number 4711               # one of them again, with details
    python tests/fuzz/run.py --corpus                             # what was kept, again
    python tests/fuzz/run.py --guided 60                          # led by coverage (atheris), 60 s

What is asserted stands in ``oracle.py`` and ``relations.py``. An input follows from the seed and
its number alone. The first input of each new kind of fault is made smaller and kept in ``corpus/``;
put the reason into its ``known`` while it waits to be mended, and the fuzzer counts it apart. Exit
code 1: there is a fault that is not known.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[0] = str(TESTS)
sys.path.insert(1, str(TESTS.parent))

from fuzz.case import CORPUS, Case, Kept, corpus, keep, made, slug  # noqa: E402
from fuzz.examine import examine, sandbox  # noqa: E402
from fuzz.product import environment, run  # noqa: E402

SILENCE = 200.0
"""Seconds at one input after which its worker is ended: it hangs where no timer reaches it."""
_SMALL = 24 << 10


@dataclass
class Job:
    """A worker and where it is."""

    first: int
    progress: Path
    process: subprocess.Popen[bytes] | None = None
    at: int = -1
    since: float = 0.0

    def number(self) -> int:
        return int.from_bytes(self.progress.read_bytes(), "little")


@dataclass
class Campaign:
    """Many inputs, shared out; gathers the findings."""

    seed: int
    inputs: int
    jobs: int
    folder: Path
    known: dict[str, str]
    counts: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    done: int = 0
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def run(self) -> None:
        """Runs all of it."""
        for first in range(self.jobs):
            job = Job(first, self.folder / f"progress-{first}")
            job.progress.write_bytes(first.to_bytes(8, "little"))
            self._start(job)
        while self.selector.get_map():
            for key, _ in self.selector.select(timeout=5):
                self._hear(key.data)
            self._end_silent()

    def _start(self, job: Job) -> None:
        start = job.number()
        if start >= self.inputs:
            return
        given = {
            "seed": self.seed, "start": start, "end": self.inputs, "step": self.jobs,
            "progress": str(job.progress), "known": [*self.known, *self.firsts],
        }  # fmt: skip
        paths = os.pathsep.join((str(TESTS), environment()["PYTHONPATH"]))
        job.process = subprocess.Popen(
            [sys.executable, str(TESTS / "fuzz" / "worker.py"), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"stderr-{job.first}").open("wb"),
            env={**environment(), "PYTHONPATH": paths},
        )
        job.at, job.since = start, time.monotonic()
        self.selector.register(job.process.stdout, selectors.EVENT_READ, job)

    def _hear(self, job: Job) -> None:
        assert job.process is not None
        line = job.process.stdout.readline()
        if line:
            self._count(json.loads(line))
            return
        self.selector.unregister(job.process.stdout)
        code = job.process.wait()
        if code:
            number = job.number()
            said = (
                (self.folder / f"stderr-{job.first}")
                .read_bytes()[-2000:]
                .decode("utf-8", "replace")
            )
            self._count(
                {"number": number, "kind": f"the process ended with {code}", "detail": said}
            )
            job.progress.write_bytes((number + self.jobs).to_bytes(8, "little"))
        self._start(job)

    def _end_silent(self) -> None:
        now = time.monotonic()
        for key in [*self.selector.get_map().values()]:
            job = key.data
            if (number := job.number()) != job.at:
                job.at, job.since = number, now
            elif now - job.since > SILENCE:
                job.process.kill()

    def _count(self, row: dict[str, Any]) -> None:
        if "done" in row:
            self.done += row["done"]
            self.codes.update(row["codes"])
            return
        kind = row["kind"]
        self.counts[kind] += 1
        if kind not in self.firsts or ("case" in row and "case" not in self.firsts[kind]):
            self.firsts[kind] = row

    def new(self) -> list[str]:
        """The kinds of faults that are not known, the most frequent first."""
        return [kind for kind, _ in self.counts.most_common() if kind not in self.known]


def campaign(seed: int, inputs: int, jobs: int, folder: Path = CORPUS) -> list[str]:
    """Runs ``inputs`` cases and prints what was found.

    Returns:
        The kinds of faults that are not known.
    """
    known = {kept.finding: kept.slug for kept in corpus(folder) if kept.known}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        every = Campaign(seed, inputs, jobs, Path(place), known)
        every.run()
    seconds = time.monotonic() - began
    print(f"{inputs:,} inputs, seed {seed}, {jobs} jobs: {seconds:.0f} s, {inputs / seconds:.0f}/s")
    print("  " + ", ".join(f"{code}: {count}" for code, count in sorted(every.codes.items())))
    for kind, count in every.counts.most_common():
        if kind in known:
            print(f"  known {count:6}  {kind}  ({known[kind]}.json)")
    for kind in every.new():
        row = every.firsts[kind]
        print(f"  NEW   {every.counts[kind]:6}  {kind}")
        print(f"        run.py --seed {seed} --number {row['number']}: {row['detail'][-300:]}")
        _keep(kind, row, folder, f"seed {seed}, number {row['number']}")
    return every.new()


def _keep(kind: str, row: dict[str, Any], folder: Path, origin: str) -> None:
    if len(json.dumps(row.get("case", "x" * _SMALL))) < _SMALL:
        place = keep(Kept(slug(kind), Case.loaded(row["case"]), kind), folder)
        print(f"        kept as {place.name} ({origin})")


def again(seed: int, number: int) -> int:
    """One case with everything about it."""
    case = made(seed, number)
    return _shown(case, number)


def _shown(case: Case, number: object) -> int:
    print("grpo", *case.words_for(case.name), f"({len(case.data)} bytes, {case.how})")
    print(case.data[:1500])
    with sandbox() as folder:
        found = examine(case, folder, number)
        (folder / case.name).write_bytes(case.data)
        outcome = run(case.words_for(case.name))
    print(f"exit code {outcome.code}, {outcome.megabytes:.0f} MB")
    print(outcome.out[:1500].decode("utf-8", "replace"))
    print(outcome.err[-3000:].decode("utf-8", "replace"))
    for one in found:
        print(f"FOUND {one.kind}: {one.detail}")
    return int(bool(found))


def again_kept() -> int:
    """What was kept: what is found in it today."""
    bad = 0
    with sandbox() as folder:
        for kept in corpus():
            kinds = {one.kind for one in examine(kept.case, folder, thorough=True)}
            state = "ok" if not kinds else "known" if kept.known else "FAILS"
            bad += state == "FAILS"
            print(f"{state:6} {kept.slug}: {', '.join(kinds)}")
    return int(bad > 0)


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--number", type=int, help="only this input, with details")
    parser.add_argument("--corpus", action="store_true", help="what was kept, again")
    parser.add_argument("--guided", type=int, metavar="SECONDS", help="with atheris, so long")
    given = parser.parse_args()
    if given.number is not None:
        return again(given.seed, given.number)
    if given.corpus:
        return again_kept()
    if given.guided is not None:
        from fuzz.guided import guide

        guide(given.guided, given.seed)
    return int(bool(campaign(given.seed, given.inputs, given.jobs)))


if __name__ == "__main__":
    sys.exit(main())
