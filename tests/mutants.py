"""Breaks the package in one place after the other, and counts what the tests do not notice.

    python tests/mutants.py --count 200 --seed 7 --only objective    # needs: pip install coverage
    python tests/mutants.py --list --only records engine             # what could be broken

Comparison operators, signs, min and max, and and or, constants off by one, dropped masks and
statements, exchanged arguments of ``np.where``, slices off by one: each mutant is one of them,
drawn by the seed from all there are. Tests that run its line (found once with coverage) are run
with its function exchanged, in a child of a process that has read them all; what is run on import,
and what survives, in a copy of the tree. Where no test is known to run it, those that start
processes are tried; those in ``mutation.covering.LEFT_OUT`` never.
Those that cannot be noticed stand in ``mutation/equivalent.txt`` with the reason. Exit code 1: some
survived.
"""

from __future__ import annotations

import argparse
import difflib
import queue
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path[0] = str(TESTS)

from mutation.covering import COPY, LEFT_OUT, collected  # noqa: E402
from mutation.live import Server  # noqa: E402
from mutation.running import copied, verdict  # noqa: E402
from mutation.sites import Mutant, mutants  # noqa: E402

PACKAGE = "grpo_cli"
SHOWN = ("view", "command", "page", "figure", "output", "options", "words", "text", "__init__")
WORDS = ("help", "page", "show", "options", "variants", "terms")
"""Commands, and parts of files' names, that are of words and drawings."""
ELSEWHERE = "engine/cluster/"
"""Left out: its tests need Ray (tests/clusters)."""
EQUIVALENT = TESTS / "mutation" / "equivalent.txt"


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    said: str
    tests: int

    @property
    def survived(self) -> bool:
        return self.said == "survived"

    @property
    def killed(self) -> bool:
        """Whether a test failed; neither holds where no test is known that takes a short time."""
        return self.said.startswith("killed")

    @property
    def room(self) -> str:
        """The package's folder that it is in; what commands compute, and how they show it."""
        parts = self.mutant.path.split("/")
        if parts[1] != "commands":
            return parts[1] if len(parts) > 2 else "."
        return f"commands, {'words' if is_words(self.mutant.path) else 'numbers'}"


def is_words(path: str) -> bool:
    """Whether a command's file holds flags, words or drawings rather than what it computes."""
    *folders, name = path.split("/")
    return len(folders) < 3 or folders[2] in WORDS or any(word in name for word in SHOWN)


def every(only: list[str], *, numbers: bool) -> list[Mutant]:
    """Every mutant of the files whose path in the package begins so; without commands' words."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    named = [(path, path.relative_to(ROOT / PACKAGE).as_posix()) for path in paths]
    wanted = [path for path, name in named if name.startswith(tuple(only or [""]))]
    here = [path for path in wanted if ELSEWHERE not in path.as_posix()]
    found = [mutant for path in here for mutant in mutants(ROOT, path)]
    shown = f"{PACKAGE}/commands"
    return [m for m in found if not (numbers and m.path.startswith(shown) and is_words(m.path))]


def drawn(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, no two of one line."""
    random.Random(seed).shuffle(found)
    lines = {(one.path, one.line): one for one in reversed(found)}
    return [*lines.values()][::-1][:count]


def difference(mutant: Mutant) -> tuple[list[str], list[str]]:
    """The lines that it takes away, and those it puts in their place, stripped."""
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    rows = difflib.ndiff(text.splitlines(), mutant.applied(text).splitlines())
    changed = [row for row in rows if row[:2] in ("- ", "+ ")]
    return tuple([row[2:].strip() for row in changed if row[0] == sign] for sign in "-+")


def equivalents() -> set[tuple[str, str, str]]:
    """The mutants that cannot be noticed, by their file and the lines that they change."""
    found, file, taken = set(), "", ""
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            file = f"{PACKAGE}/{line[2:].strip()}"
        elif line.startswith("- "):
            taken = line[2:].strip()
        elif line.startswith("+ "):
            found.add((file, taken, line[2:].strip()))
    return found


def is_equivalent(mutant: Mutant, known: set[tuple[str, str, str]]) -> bool:
    """Whether it is one of them; of several lines that change, all are in one."""
    taken, put = difference(mutant)
    return (mutant.path, " ".join(taken), " ".join(put)) in known


def judged(
    chosen: list[Mutant], workers: int, seconds: float, cache: Path | None
) -> Iterator[Result]:
    """Runs the mutants, each in a copy that no other uses at the time."""
    with tempfile.TemporaryDirectory(prefix=COPY) as folder:
        base = copied(ROOT, Path(folder) / "base")
        covered = collected(base, PACKAGE, workers, cache)
        failing, sizes = covered.failing, covered.sizes()
        if failing:
            print(f"{len(failing)} tests fail as it is and are left out: {', '.join(failing[:5])}")
        places: queue.Queue[tuple[Path, Server]] = queue.Queue()
        for number in range(workers):
            place = copied(ROOT, Path(folder) / str(number))
            places.put((place, Server(place, PACKAGE, LEFT_OUT)))

        def judge(mutant: Mutant) -> Result:
            tests = covered.nearest(
                mutant.path, mutant.first, mutant.last, sizes, inside=mutant.inside
            )
            place, server = places.get()
            try:
                return Result(mutant, verdict(place, server, mutant, tests, seconds), len(tests))
            finally:
                places.put((place, server))

        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(judge, chosen)
        while not places.empty():
            places.get()[1].close()


def shown(result: Result) -> str:
    """A survivor as a reader wants to see it."""
    taken, put = difference(result.mutant)
    mutant = result.mutant
    of = f"{mutant.path}:{mutant.line} ({mutant.kind}; {result.tests} tests run its line)"
    return "\n".join([of, *(f"  - {row}" for row in taken), *(f"  + {row}" for row in put)])


def report(results: list[Result]) -> None:
    """Killed, survived and not decided in each room of the package, then the survivors."""
    rooms = sorted({one.room for one in results})
    for room in [*rooms, "all"]:
        inside = [one for one in results if room in ("all", one.room)]
        killed = sum(one.killed for one in inside)
        survived = sum(one.survived for one in inside)
        of = f"{killed / (killed + survived or 1):4.0%} of {killed + survived} decided"
        rest = len(inside) - killed - survived
        print(f"{room:18} {killed:4} killed {survived:4} survived {rest:4} not decided  {of}")
    for one in results:
        if one.survived:
            print("\n" + shown(one))


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="only files whose path begins so")
    parser.add_argument("--numbers", action="store_true", help="no words and drawings of commands")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="for each round of tests")
    parser.add_argument("--cache", type=Path, help="where to keep which test runs which line")
    parser.add_argument("--list", action="store_true", help="only how many there are")
    given = parser.parse_args()
    found = every(given.only, numbers=given.numbers)
    if given.list:
        print(*sorted(Counter(one.kind for one in found).items()), f"all: {len(found)}", sep="\n")
        return 0
    known = equivalents()
    chosen = drawn(found, given.count, given.seed)
    tried = [one for one in chosen if not is_equivalent(one, known)]
    print(f"{len(chosen)} of {len(found)} mutants, {len(chosen) - len(tried)} of them equivalent")
    began, results = time.monotonic(), []
    for result in judged(tried, given.workers, given.seconds, given.cache):
        results.append(result)
        place = f"{result.mutant.path}:{result.mutant.line}"
        print(f"{len(results):4} {place} {result.said}", flush=True)
    report(results)
    print(f"{time.monotonic() - began:.0f} s")
    return int(any(one.survived for one in results))


if __name__ == "__main__":
    sys.exit(main())
