"""Prints how often the answers of ``check``, ``verify`` and ``match`` are right.

    python tests/benchmarks/answers.py                       # some minutes on four cores
    python tests/benchmarks/answers.py --seeds 1 --hold      # some minutes; .ci/run a part of it
    python tests/benchmarks/answers.py --small               # a few seconds, to see that it runs
    python tests/benchmarks/answers.py --case /check/ --json # details, with every miss

Batches are simulated, faults planted, wrong implementations written down and questions drawn, all
from seeds: 0 to 9999 are for building (thresholds, patterns, new rules may be tuned on them), 10000
and above for reporting, and only those figures are shown anywhere. A rate is printed with its 95 %
interval (Wilson). Every miss is listed by ``--json`` with the command that asks it again;
``--dump DIR`` writes the records of the misses, each with its command beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))
from asking import arguments, asked
from trials import product
from trials.report import document, markdown, missed
from trials.score import Count, Task, merged

SECTIONS = {
    "verify": "verify",
    "strangers": "strangers.verifying strangers.checking strangers.matching",
}
"""Section → the modules that ask it; tasks of several begin with what is asked: verify, …"""


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    wanted = re.compile(options.case)
    for section in options.only.split(","):
        for name in SECTIONS[section].split():
            made = import_module(f"trials.{name}").tasks(options.first, options.seeds)
            for task in made:
                if wanted.search(task.name) and options.seed in (None, task.seed):
                    yield task


def module(task: Task) -> Any:
    names = SECTIONS[task.section].split()
    asked = task.name.split("/")[1][:5] if len(names) > 1 else ""
    return import_module(f"trials.{next(one for one in names if asked in one)}")


def ask(task: Task) -> dict[str, Count]:
    """One question; a crash of the experiment itself is told with the question."""
    try:
        return module(task).ask_one(task)
    except Exception as error:
        raise RuntimeError(f"{task}: {error!r}") from error


def dump(folder: Path, counts: dict[str, Count]) -> None:
    """The records of every listed case, and the command that asks about them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "commands.txt").open("w") as commands:
        for at, case in enumerate(case for count in counts.values() for case in count.cases):
            task = case["task"]
            records, words = module(task).records(task)
            path = folder / f"{at:04}-{re.sub('[^a-z0-9]+', '-', task.name.lower())}.jsonl"
            path.write_bytes(product.lines(records))
            rest = " ".join([*words[:1], str(path), *words[1:]])
            commands.write(f"grpo {rest}   # {task.name}, seed {task.seed}\n")


def main() -> None:
    parser = arguments(__doc__, 12, hold="where a goal is surely missed", sections=[*SECTIONS])
    add = parser.add_argument
    add("--seed", type=int, help="only questions of this very seed")
    add("--dump", metavar="DIR", type=Path, help="write the records of every miss to this folder")
    options = parser.parse_args()
    if options.seed is not None:
        options.first, options.seeds = options.seed, 1
    elif options.small:
        options.seeds = 1
    questions = list(tasks(options))
    if options.small:
        questions = questions[::10]
    counts = merged(asked(ask, questions, options.jobs))
    if options.dump:
        dump(options.dump, counts)
    used = [task.seed for task in questions] or [options.first]
    seeds = (min(used), max(used))
    if options.json:
        json.dump(document(counts, seeds), sys.stdout, indent=1, ensure_ascii=False)
    else:
        print(markdown(counts, seeds))
    if options.hold and (rows := missed(counts)):
        raise SystemExit("missed: " + "; ".join(rows))


if __name__ == "__main__":
    main()
