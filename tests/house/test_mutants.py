"""The script that breaks the package on purpose still runs."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_mutants_are_listed() -> None:
    command = [sys.executable, "tests/mutants.py", "--list", "--only", "objective/kl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout.rpartition("all: ")[2]) > 50


def test_tests_that_run_the_least_else_come_first(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    from mutation.covering import Covered

    lines = {"a.py": {"1": [0, 1], "2": [1], "3": [1, 2]}}
    covered = Covered(lines, ["small", "large", "broken"], ["broken"])
    assert covered.sizes() == Counter({1: 3, 0: 1, 2: 1})
    assert covered.nearest("a.py", 1, 3, covered.sizes()) == ["small", "large"]
    assert covered.nearest("b.py", 1, 3, covered.sizes()) == []
