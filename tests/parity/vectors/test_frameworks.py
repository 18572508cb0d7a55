"""TRL 1.16.0, verl 0.9.1 and the plain torch loss through the plugin, as authors would run it.

``pytest tests/parity/vectors --write-golden`` writes which cases each framework was run on and
returned (``tests/vectors/executed.json``); ``python -m vectors.make`` takes them into the files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.vectors import cases

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
EXECUTED = ROOT / "tests/vectors/executed.json"
INSTALLED = bool(entry_points(group="pytest11", name="grpo-vectors"))
PLUGIN = [] if INSTALLED else ["-p", "grpo_cli.vectors.plugin"]

FRAMEWORKS = {"trl_vectors.py": "trl 1.16.0", "verl_vectors.py": "verl 0.9.1"}
COUNTS = {
    "trl_vectors.py": {"grpo_vectors": (282, 0, 7, 185)},
    "verl_vectors.py": {"grpo_vectors": (346, 0, 3, 125)},
    "plain/vectors.py": {
        "grpo_vectors_float64": (434, 0, 0, 40),
        "grpo_vectors_float32": (434, 0, 0, 40),
        "grpo_vectors_bfloat16": (416, 0, 0, 58),
    },
}
"""Passed, failed, expected to fail, not claimed: a case that is lost shows here."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What ``--grpo-vectors-json`` says of each module's fixtures."""
    folder = tmp_path_factory.mktemp("outcomes")
    files = {module: folder / f"{number}.json" for number, module in enumerate(COUNTS)}
    return {module: outcome(module, file) for module, file in files.items()}


def outcome(module: str, file: Path) -> dict[str, Any]:
    options = ["-q", "--grpo-vectors-json", str(file), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, *options, str(HERE / module)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))["fixtures"]
    return {name.rpartition("::")[2]: fixture for name, fixture in found.items()}


@pytest.mark.parametrize("module", COUNTS)
def test_each_loss_passes_what_it_claims(module: str, outcomes: dict[str, dict[str, Any]]) -> None:
    names = ("passed", "failed", "xfailed", "not claimed")
    counts = {
        fixture: tuple(found[name] for name in names) for fixture, found in outcomes[module].items()
    }
    assert counts == COUNTS[module]
    assert all(not found["unneeded"] for found in outcomes[module].values())


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_every_expected_failure_has_its_thread(
    module: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    for found in outcomes[module].values():
        for reason in found["expected failures"].values():
            assert re.search(r"https://github\.com/\S+/(issues|pull)/\d+ .{20,}", reason)


def test_the_files_say_which_frameworks_returned_each_case(
    outcomes: dict[str, dict[str, Any]], writing: bool
) -> None:
    executed = {
        case.id: [
            name for module, name in FRAMEWORKS.items() if case.id in passed(outcomes[module])
        ]
        for case in cases()
        if case.result != "invalid"
    }
    executed = {name: frameworks for name, frameworks in executed.items() if frameworks}
    if writing:
        EXECUTED.write_text(json.dumps(executed, indent=1) + "\n", encoding="utf-8")
    assert json.loads(EXECUTED.read_text(encoding="utf-8")) == executed


def passed(fixtures: dict[str, Any]) -> set[str]:
    return {name for found in fixtures.values() for name in found["passes"]}
