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

from grpo_cli.mistakes import flags
from grpo_cli.vectors import Case, NotClaimedError, cases, claimed, judge
from grpo_cli.vectors.claims import OPTIONS, STAGES, vocabulary

from .plain import Plain, claims_of
from .planted import BUGS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
EXECUTED = ROOT / "tests/vectors/executed.json"
INSTALLED = bool(entry_points(group="pytest11", name="grpo-vectors"))
PLUGIN = [] if INSTALLED else ["-p", "grpo_cli.vectors.plugin"]

FRAMEWORKS = {"trl_vectors.py": "trl 1.16.0", "verl_vectors.py": "verl 0.9.1"}
KNOWN = {"trl_vectors.py": "trl.xfail", "verl_vectors.py": "verl.xfail"}
COUNTS = {
    "trl_vectors.py": {"grpo_vectors": (282, 7, 185)},
    "verl_vectors.py": {"grpo_vectors": (346, 3, 125)},
    "plain/vectors.py": {
        "grpo_vectors_float64": (434, 0, 40),
        "grpo_vectors_float32": (434, 0, 40),
        "grpo_vectors_bfloat16": (416, 0, 58),
    },
}
"""Passed, failed, not claimed: a case that is lost shows here."""


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
    assert done.returncode == (module in FRAMEWORKS), done.stdout[-5000:] + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))["fixtures"]
    return {name.rpartition("::")[2]: fixture for name, fixture in found.items()}


@pytest.mark.parametrize("module", COUNTS)
def test_each_loss_passes_what_it_claims(module: str, outcomes: dict[str, dict[str, Any]]) -> None:
    names = ("passed", "failed", "not claimed")
    counts = {
        fixture: tuple(found[name] for name in names) for fixture, found in outcomes[module].items()
    }
    assert counts == COUNTS[module]


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_every_failure_is_known_and_has_its_thread(
    module: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    lines = (HERE / KNOWN[module]).read_text(encoding="utf-8").splitlines()
    known = dict(line.split(" ", 1) for line in lines if not line.startswith("#"))
    for reason in known.values():
        assert re.match(r"https://github\.com/\S+/(issues|pull)/\d+ .{20,}", reason)
    flagged = {case.id: {case.id, *case.flags} for case in cases()}
    failed = [flagged[case] for found in outcomes[module].values() for case in found["failures"]]
    assert all(known.keys() & names for names in failed)
    assert known.keys() <= set().union(*failed)


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


# ---- planted faults ------------------------------------------------------------------------------


CLAIMS = claims_of()


def runnable() -> list[Case]:
    found = []
    for case in cases():
        try:
            found.append(claimed(case, CLAIMS))
        except NotClaimedError:
            continue
    return found


CASES = runnable()


def answers(loss: Plain) -> set[str]:
    """The cases that fail."""
    return {case.id for case in CASES if judge(loss, case, CLAIMS).problems}


@pytest.fixture(scope="module")
def planted() -> dict[str, list[set[str]]]:
    """Mistake → the cases that fail with it planted, in each form."""
    return {name: [answers(form()) for form in BUGS[name]] for name in flags() if name in BUGS}


def test_each_fault_is_a_flag() -> None:
    assert set(BUGS) <= set(flags())


def test_the_loss_without_a_fault_passes() -> None:
    assert answers(Plain()) == set()


def test_the_fault_is_found_by_every_case_that_is_there_for_it(planted) -> None:
    for name, forms in planted.items():
        there = {case.id for case in CASES if name in case.flags}
        failing = set().union(*forms)
        assert failing, name
        assert not there - failing, f"{name}: these pass though the fault is there"


# ---- the example of ``grpo help vectors``, run as it stands there --------------------------------


PAGE = ROOT / "grpo_cli/commands/help/pages/vectors.md"
README = PAGE.read_text(encoding="utf-8")


def test_the_example_ends_as_the_readme_says(tmp_path: Path) -> None:
    fixture, trainer = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "test_my_loss.py").write_text(fixture, encoding="utf-8")
    (tmp_path / "my_trainer.py").write_text(trainer, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "--grpo-vectors"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout.splitlines()
    (shown,) = re.findall(r"```text\ngrpo vectors\n(.*?)```", README, re.DOTALL)
    assert [line for line in shown.splitlines() if line not in printed] == []
    first = printed.index(shown.splitlines()[0])
    assert printed[first : first + len(shown.splitlines())] == shown.splitlines()


def test_the_readme_has_every_choice() -> None:
    for name in (*STAGES, "options", "metrics"):
        (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", README, re.MULTILINE)
        assert sorted(re.findall(r"`([^`]+)`", row)) == sorted(vocabulary()[name])
    assert set(OPTIONS) == set(vocabulary()["options"])


def test_the_readme_counts_right() -> None:
    every = cases()
    assert f"{len(every)} small inputs" in README
    executed = sum(bool(case.executed) for case in every)
    assert f"{executed} of the {len(every)} cases" in README
    for counts in (found for module in COUNTS.values() for found in module.values()):
        passed, failed, not_claimed = counts
        assert f"| {passed} | {failed} | {not_claimed} |" in README
