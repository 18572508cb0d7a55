"""Which tests run which line: coverage with a context for each test, collected once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LEFT_OUT = ("parity", "faults", "regressions", "house", "benchmarks", "mutation", "fuzz")
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
"""File → line → the tests that run it."""


def tests_of(root: Path) -> list[str]:
    """The folders and files of tests, each of which is collected on its own."""
    places = sorted((root / "tests").iterdir())
    folders = [one for one in places if one.is_dir() and one.name not in LEFT_OUT]
    kept = [one for one in folders if any(one.glob("test_*.py"))]
    files = [one for one in places if one.match("test_*.py") and one.name != "test_soak.py"]
    return [one.relative_to(root).as_posix() for one in (*kept, *files)]


def environment(root: Path) -> dict[str, str]:
    """This tree first; nothing compiled is written: mutants come faster than file times change."""
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def collected(root: Path, package: str, jobs: int, cache: Path | None) -> tuple[Map, list[str]]:
    """The lines and their tests, and the tests that fail as it is.

    Args:
        root: a copy of the tree.
        package: the folder of the package.
        jobs: how many collect at once.
        cache: where to remember it; None: in the temporary folder, by what the tree holds.
    """
    name = f"mutants-{_state(root)}.json"
    cache = cache or Path(tempfile.gettempdir()) / name
    if cache.exists():
        found = json.loads(cache.read_text())
        return found["lines"], found["failing"]
    (root / "mutant_contexts.py").write_text(PLUGIN)
    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(lambda place: _part(root, package, place), tests_of(root)))
    lines: Map = {}
    for part, _ in parts:
        for file, of_file in part.items():
            for line, tests in of_file.items():
                lines.setdefault(file, {}).setdefault(line, []).extend(tests)
    failing = [test for _, bad in parts for test in bad]
    cache.write_text(json.dumps({"lines": lines, "failing": failing}))
    return lines, failing


def _state(root: Path) -> str:
    every = sorted(one for one in root.rglob("*.py") if one.is_file())
    whole = hashlib.sha256()
    for path in every:
        whole.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def _part(root: Path, package: str, place: str) -> tuple[Map, list[str]]:
    """What the tests of one place run, and which of them fail."""
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
        bad = [line.partition(" ")[2].partition(" - ")[0] for line in said]
        return _read(root, data), bad


def _read(root: Path, data: Path) -> Map:
    from coverage import CoverageData

    found = CoverageData(str(data))
    found.read()
    lines: Map = {}
    for file in found.measured_files():
        name = Path(file).relative_to(root).as_posix()
        of_line = found.contexts_by_lineno(file)
        lines[name] = {str(line): [t for t in tests if t] for line, tests in of_line.items()}
    return lines


def nearest(lines: Map, path: str, first: int, last: int, counts: Counter[str]) -> list[str]:
    """The tests that run any of these lines, those that run the least else first."""
    of_file = lines.get(path, {})
    tests = {test for line in range(first, last + 1) for test in of_file.get(str(line), ())}
    return sorted(tests, key=lambda test: (counts[test], test))


def sizes(lines: Map) -> Counter[str]:
    """How many lines each test runs."""
    return Counter(t for of_file in lines.values() for tests in of_file.values() for t in tests)


def without(tests: Sequence[str], failing: Sequence[str]) -> list[str]:
    """The tests that pass as it is."""
    return [one for one in tests if one not in set(failing)]
