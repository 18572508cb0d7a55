"""Prints how often ``grpo trend`` finds what ends a run, how soon, and how often it is wrong.

    python tests/benchmarks/runs.py                    # ten seeds a kind: minutes
    python tests/benchmarks/runs.py --small --hold     # seconds; .ci/run
    python tests/benchmarks/runs.py --only healthy --seeds 100
    python tests/benchmarks/runs.py --case 'KL' --misses

Runs of 120 steps are simulated: softmax policies that learn from what they sample, with noise that
is autocorrelated and has heavy tails, and a fault from a step between 50 and 70 on. The command is
asked about the whole run and about its beginnings, as somebody who looks while it trains. Seeds 0
to 9999 are for building, 10000 and above for reporting; those up to 93999 have been reported on.
Logs alone are series under the names of frameworks; a fault counts where the log has its series.

A fault is found where a finding names a metric that it moves, the way it moves, at its step; in
time where the command says so within the kind's number of steps. A finding is false where the run
is healthy or before the onset.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

from asking import arguments, asked  # noqa: E402
from running.judge import Answer, Verdict, ask, ask_beginnings, judge, looked  # noqa: E402
from running.kinds import HEALTHY_RUN, KINDS, Kind  # noqa: E402
from running.logs import FILES, FRAMEWORKS, HEALTHY_LOG, NAMES, PLANTED, healthy  # noqa: E402
from running.simulate import SHAPES, STEPS, lines, simulate  # noqa: E402
from trials.score import table, wilson  # noqa: E402

SEEN = (1, 2, 3, 5, 8, 10, 12, 15, 20, 24, 36)
"""Steps since the onset at which somebody looks."""
EVERY = 10
"""Healthy runs are looked at every so many steps."""
HELD = {"found": 0.6, "false": 0.2}
"""What ``--hold`` wants of a small size: the least share found, and the most false runs."""


class Question(NamedTuple):
    """One run: a section, a kind, a seed, and how often it is looked at."""

    section: str
    kind: Kind
    seed: int
    every: int
    small: bool


def generator(question: Question) -> np.random.Generator:
    """A generator of its own, whatever else is asked."""
    name = zlib.crc32(f"{question.section}/{question.kind.name}".encode())
    return np.random.default_rng([question.seed, name])


def prefixes(kind: Kind, onset: int, every: int, *, small: bool) -> list[int]:
    """After how many steps somebody looks."""
    if kind.sound:
        looks = list(range(20, STEPS, every))
    else:
        seen = [kind.within] if small else sorted({*SEEN, kind.within})
        looks = [onset + since for since in seen]
    return [*[look for look in looks if look < STEPS], STEPS]


def ask_run(question: Question, folder: Path) -> Verdict:
    """Simulates a run and asks about it."""
    began = time.perf_counter()
    kind, seed = question.kind, question.seed
    fixed, steps = simulate(generator(question), kind.change, steady=kind.steady)
    shape = list(SHAPES)[seed % len(SHAPES)]
    parts = [lines(rows, shape, ratios=fixed.ratios) for rows in steps]
    words = ("--group-by", "uid") if shape == "verl" else ()
    path = folder / "run.jsonl"
    path.write_bytes(b"".join(parts))
    ask_first = ask_beginnings(path, len(steps), *words)
    looks = prefixes(kind, fixed.onset, question.every, small=question.small)
    verdict = judge(kind, seed, fixed.onset, looked(ask_first, kind, fixed.onset, looks))
    return replace(verdict, seconds=time.perf_counter() - began)


def ask_log(question: Question, folder: Path) -> Verdict:
    """Writes a log and asks about it."""
    began = time.perf_counter()
    kind, seed = question.kind, question.seed
    random = generator(question)
    series, onset = healthy(random), int(random.integers(50, 71))
    onset = 0 if kind.steady else onset
    for planted in PLANTED:
        if planted.kind.name == kind.name:
            planted.change(series, onset, random)
    name, first, write = list(FILES.values())[seed % len(FILES)]
    onset, path = onset + first, folder / name

    def ask_first(count: int) -> Answer:
        """About the steps before this number; a log may count them from 1."""
        path.write_text(write(series, count - first))
        return ask(path, count)

    looks = [
        first + look for look in prefixes(kind, onset - first, question.every, small=question.small)
    ]
    verdict = judge(kind, seed, onset, looked(ask_first, kind, onset, looks))
    return replace(verdict, seconds=time.perf_counter() - began)


SECTIONS = {"runs": ask_run, "healthy": ask_run, "logs": ask_log}
KINDS_OF: Mapping[str, Sequence[Kind]] = {
    "runs": KINDS,
    "healthy": [HEALTHY_RUN],
    "logs": [*[planted.kind for planted in PLANTED], HEALTHY_LOG],
}


def answer_one(question: Question) -> tuple[str, Verdict]:
    """One question, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return question.section, SECTIONS[question.section](question, Path(folder))
        except Exception as error:
            raise RuntimeError(f"{question.kind.name}, seed {question.seed}: {error!r}") from error


def is_logged(section: str, kind: Kind, seed: int) -> bool:
    """Whether a run shows the fault at all: not every framework logs every series."""
    if SECTIONS[section] is not ask_log or kind.sound:
        return True
    logged = NAMES[FRAMEWORKS[seed % len(FRAMEWORKS)]].values()
    return any(kind.sign_of(name) is not None for name in logged)


def questions(options: argparse.Namespace) -> list[Question]:
    """What is asked."""
    wanted = re.compile(options.case)
    found = []
    for section in options.only.split(","):
        for kind in KINDS_OF[section]:
            if not wanted.search(kind.name):
                continue
            more = 5 if options.small else 10
            count = options.seeds * (more if section == "healthy" else 1)
            seeds = range(options.first, options.first + count)
            found += [
                Question(section, kind, seed, 50 if options.small else EVERY, options.small)
                for seed in seeds
                if is_logged(section, kind, seed)
            ]
    return found


def row(section: str, kind: Kind, verdicts: Sequence[Verdict]) -> list[str]:
    """A kind's row of the table."""
    of = len(verdicts)
    false = sum(bool(one.false) for one in verdicts)
    rest = [
        f"{sum(bool(getattr(one, name)) for one in verdicts)}"
        for name in ("opposite", "untrue", "lost")
    ]
    name = f"{section} · {kind.name}"
    if kind.sound:
        low, high = wilson(false, of)
        interval = f"{false} of {of} ({100 * low:.2g}–{100 * high:.2g} %)"
        return [name, "", "", "", "", interval, *rest]
    found = [one for one in verdicts if one.found]
    delays = [one.delay for one in verdicts if one.delay is not None]
    late = len(delays) - len(found)
    shown = f"{len(found)} of {of} in ≤ {kind.within}" + (f", {late} later" if late else "")
    delay = f"{median(delays):g}" if delays else "–"
    kept = sum(one.kept for one in verdicts)
    events = [one.events for one in verdicts if one.events is not None]
    first = sum(one.first for one in verdicts)
    told = f"{first}; {median(events):g}" if events else "–"
    return [name, shown, delay, f"{kept}", told, f"{false}", *rest]


HEAD = (
    "kind",
    "found",
    "delay",
    "at the end",
    "first; events",
    "false",
    "wrong way",
    "untrue",
    "taken back",
)


def report(found: dict[tuple[str, str], list[Verdict]], *, misses: bool) -> str:
    """The table, and what went wrong in each run where that is asked for."""
    rows, wrong = [], []
    for (section, name), verdicts in found.items():
        kind = next(kind for kind in KINDS_OF[section] if kind.name == name)
        rows.append(row(section, kind, verdicts))
        for one in verdicts:
            said = [*one.false[:2], *one.opposite[:2], *one.untrue[:2], *one.lost[:2]]
            if said or one.notes or not (one.found or kind.sound):
                found_or = "" if kind.sound or one.found else f" not in time ({one.delay})"
                wrong.append(f"{section} · {name}, seed {one.seed}{found_or}")
                named = ("false", "opposite", "untrue", "lost")
                wrong += [
                    f"    {each}: {getattr(one, each)[0]}" for each in named if getattr(one, each)
                ]
                wrong += [f"    {one.notes.strip()[:200]}"] if one.notes else []
    return table(HEAD, rows) + ("\n\n" + "\n".join(wrong) if misses and wrong else "")


def too_bad(found: dict[tuple[str, str], list[Verdict]]) -> list[str]:
    """Why a small size does not hold."""
    every = [one for (section, name), part in found.items() for one in part if name != "healthy"]
    sound = [one for (section, name), part in found.items() for one in part if name == "healthy"]
    share = sum(one.found for one in every) / max(len(every), 1)
    false = sum(bool(one.false) for one in sound) / max(len(sound), 1)
    reasons = [f"found {share:.0%}"] if every and share < HELD["found"] else []
    return reasons + ([f"false {false:.0%}"] if false > HELD["false"] else [])


def main() -> None:
    hold = "where it is surely worse than it was"
    parser = arguments(__doc__, 10, hold=hold, sections=[*SECTIONS])
    parser.add_argument("--misses", action="store_true", help="list what went wrong")
    options = parser.parse_args()
    if options.small:
        options.seeds = 1
    wanted = questions(options)
    found: dict[tuple[str, str], list[Verdict]] = {}
    for section, verdict in asked(answer_one, wanted, options.jobs):
        found.setdefault((section, verdict.kind), []).append(verdict)
        if options.json:
            line = json.dumps({"section": section, **asdict(verdict)}, ensure_ascii=False)
            print(line, flush=True)
    if not options.json:
        print(report(found, misses=options.misses))
    if options.hold and (reasons := too_bad(found)):
        raise SystemExit("worse than it was: " + "; ".join(reasons))


if __name__ == "__main__":
    main()
