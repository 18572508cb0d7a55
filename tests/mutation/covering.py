"""Which tests run which line: coverage with a context for each test, collected once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

COPY = "mutants-"
"""In a copy's path, and so in the names of tests that are called after files."""
LEFT_OUT = ("parity", "clusters", "faults", "house", "benchmarks", "mutation", "fuzz")
"""Folders whose tests are of processes and of what is known to be broken, not of a line."""
PLUGIN = """
import coverage
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    coverage.Coverage.current().switch_context(item.nodeid)
"""
_SETTINGS = "[run]\nbranch = False\nsource = {package}\ndata_file = {data}\n"
Map = dict[str, dict[str, list[str]]]
"""File → line → the names of the tests that run it, of one file of tests."""


def tests_of(root: Path) -> list[str]:
    """The files of tests, each of which is run on its own."""
    places = sorted((root / "tests").iterdir())
    folders = [one for one in places if one.is_dir() and one.name not in LEFT_OUT]
    inside = [one for folder in folders for one in sorted(folder.glob("test_*.py"))]
    files = [one for one in places if one.match("test_*.py") and one.name != "test_soak.py"]
    return [one.relative_to(root).as_posix() for one in (*inside, *files)]


def environment(root: Path) -> dict[str, str]:
    """This tree first; nothing compiled is written: mutants come faster than file times change."""
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


class Covered(NamedTuple):
    """Which tests run which line.

    Attributes:
        lines: file → line → the numbers of the tests that run it.
        tests: their names.
        failing: those that fail as it is, and say nothing.
    """

    lines: dict[str, dict[str, list[int]]]
    tests: list[str]
    failing: list[str]

    def sizes(self) -> Counter[int]:
        """How many lines each test runs."""
        of_files = self.lines.values()
        return Counter(t for of_file in of_files for tests in of_file.values() for t in tests)

    def nearest(
        self, path: str, first: int, last: int, sizes: Counter[int], *, inside: bool = True
    ) -> list[str]:
        """The tests that pass and run any of these lines, those that run the least else first.

        What is read when a file is imported was run by whichever test came first: of those lines it
        is the tests that run any line of the file.
        """
        of_file = self.lines.get(path, {})
        at = range(first, last + 1)
        if not inside:
            at = range(1, 1 + max(map(int, of_file), default=0))
        numbers = {n for line in at for n in of_file.get(str(line), ())}
        ordered = sorted(numbers, key=lambda number: (sizes[number], number))
        names = [self.tests[number] for number in ordered]
        return [one for one in names if one not in self.failing and COPY not in one]


def collected(root: Path, package: str, jobs: int, cache: Path | None) -> Covered:
    """The lines and their tests, and the tests that fail as it is.

    Args:
        root: a copy of the tree.
        package: the folder of the package.
        jobs: how many collect at once.
        cache: where to remember it; None: in the temporary folder, by what the tree holds.
    """
    cache = cache or Path(tempfile.gettempdir()) / f"{COPY}{_state(root)}.json"
    if cache.exists():
        return Covered(**json.loads(cache.read_text()))
    (root / "mutant_contexts.py").write_text(PLUGIN)
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda place: _part(root, package, place), tests_of(root))
        covered = _numbered(parts)
    cache.write_text(json.dumps(covered._asdict()))
    return covered


def _numbered(parts: Iterable[tuple[Map, list[str]]]) -> Covered:
    """All parts in one, a number for each test's name."""
    lines: dict[str, dict[str, list[int]]] = {}
    numbers: dict[str, int] = {}
    failing: list[str] = []
    for part, failed in parts:
        failing += failed
        for file, of_file in part.items():
            for line, tests in of_file.items():
                known = lines.setdefault(file, {}).setdefault(line, [])
                known.extend(numbers.setdefault(test, len(numbers)) for test in tests)
    return Covered(lines, list(numbers), failing)


def _state(root: Path) -> str:
    every = sorted(one for one in root.rglob("*.py") if one.is_file())
    digest = hashlib.sha256()
    for path in every:
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _part(root: Path, package: str, place: str) -> tuple[Map, list[str]]:
    """What the tests of one file run, and which of them fail."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings"
        data = Path(folder) / "data"
        settings.write_text(_SETTINGS.format(package=root / package, data=data))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"),
                *("-p", "mutant_contexts", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", place),
            ],
            cwd=root, env=environment(root), capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        failed = [line.partition(" ")[2].partition(" - ")[0] for line in said]
        return _read(root, data), failed


def _read(root: Path, data: Path) -> Map:
    from coverage import CoverageData

    covered = CoverageData(str(data))
    covered.read()
    lines: Map = {}
    for file in covered.measured_files():
        name = Path(file).relative_to(root).as_posix()
        of_line = covered.contexts_by_lineno(file)
        lines[name] = {str(line): [t for t in tests if t] for line, tests in of_line.items()}
    return lines
