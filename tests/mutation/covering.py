"""Which tests run which line: coverage with a context for each test, collected once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

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
"""File → line → the names of the tests that run it."""


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
