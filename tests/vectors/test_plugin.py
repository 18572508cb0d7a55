"""The pytest plugin as a project runs it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = (Path(__file__).parent / "data/project/test_loss.py").read_text(encoding="utf-8")
PLUGIN = ("-p", "grpo_cli.vectors.plugin")
BARE = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""pytest without the plugins of other packages, which take a second to start."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(quick: Path, tmp_path: Path) -> Run:
    """Runs pytest on a project of one file."""
    return partial(in_project, tmp_path, [str(quick / "pytest")])


def in_project(
    folder: Path, command: list[str], text: str, *options: str
) -> subprocess.CompletedProcess[str]:
    (folder / "test_loss.py").write_text(text, encoding="utf-8")
    command = [*command, *PLUGIN, "-p", "no:cacheprovider", "-q", *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ | BARE, capture_output=True, text=True, check=False
    )


def summary(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stdout.splitlines()
    return next(line for line in lines if "::grpo_vectors: " in line)


def test_nothing_runs_unless_it_is_asked_for(run: Run) -> None:
    done = run(PROJECT)
    assert "no tests ran" in done.stdout


@pytest.fixture(scope="module")
def right(
    quick: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """All vectors on the project as it is, and their outcome as JSON."""
    folder = tmp_path_factory.mktemp("right")
    options = ("--grpo-vectors", "--grpo-vectors-json", "out.json")
    done = in_project(folder, [str(quick / "pytest")], PROJECT, *options)
    return done, json.loads((folder / "out.json").read_text(encoding="utf-8"))


def test_a_loss_that_is_right(right) -> None:
    done, _ = right
    assert done.returncode == 0, done.stdout
    passed, failed, not_claimed = counts(done)
    assert passed > 40
    assert failed == 0
    assert not_claimed > 250
    assert "not claimed by: " in done.stdout


def counts(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [int(word) for word in summary(done).split(": ")[1].split() if word.isdigit()]


@pytest.mark.more
def test_one_case_by_its_name(run: Run) -> None:
    """And where the outcome is wanted as JSON, the vectors run without the other option."""
    name = "test_loss.py::grpo_vectors::clip/above-positive"
    for option in ("--grpo-vectors", "--grpo-vectors-json=out.json"):
        assert counts(run(PROJECT, option, name)) == [1, 0, 0]


@pytest.mark.more
def test_the_same_over_several_processes(run: Run) -> None:
    few = ("--grpo-vectors", "-k", "clip")
    alone = run(PROJECT, *few)
    spread = run(PROJECT, *few, "-p", "xdist", "-n", "2")
    assert counts(alone)[0] > 10
    assert summary(spread) == summary(alone)


@pytest.mark.more
def test_a_fault_is_named_with_its_thread(run: Run) -> None:
    text = PROJECT.replace("np.minimum(free, bounded)", "free")
    done = run(text, "--grpo-vectors", "-k", "clip")
    assert done.returncode == 1
    assert "clip/above-positive: One token, its ratio above the clip range" in done.stdout
    assert "loss: expected -1.2, got -1.64872127" in done.stdout
    assert "  failed by flag: clip-unused (" in done.stdout


SLIPS = {
    'return {"loss": loss, "gradient": gradient}': (
        "return loss, gradient",
        'compute returned a tuple; return {"loss": …, "gradient": …}',
    ),
    "np.array, dtype=float": (
        "np.array, dtype=np.float32",
        '2 failures are due to float32 precision; Claims(dtype="float32") accepts them',
    ),
    '"gradient": gradient': ('"gradient": None', "gradient: the fixture returned none"),
}
"""Slips of an author: what is written in place of what, and the message."""


@pytest.mark.more
def test_slips_of_an_author(run: Run, tmp_path: Path) -> None:
    """Each in a module of its own, in one run; none is taken for a mistake of the catalogue."""
    for number, (right, (wrong, _)) in enumerate(SLIPS.items()):
        assert right in PROJECT
        text = PROJECT.replace(right, wrong)
        (tmp_path / f"test_slip_{number}.py").write_text(text, encoding="utf-8")
    modules = map(str, tmp_path.glob("test_slip_*.py"))
    printed = run(PROJECT, "--grpo-vectors", "-k", "token-0 or mean-half-twice", *modules).stdout
    assert [message for _, message in SLIPS.values() if message not in printed] == []


@pytest.mark.more
def test_a_module_without_the_fixture(run: Run) -> None:
    done = run(PROJECT.replace("def grpo_vectors", "def vectors"), "--grpo-vectors")
    assert "no test module has a fixture named grpo_vectors" in done.stdout


@pytest.mark.more
def test_an_exception_is_a_failure(run: Run) -> None:
    text = PROJECT.replace("return {", "raise ZeroDivisionError('of the loss')\n        return {")
    done = run(text, "--grpo-vectors", "-k", "clip")
    passed, failed, _ = counts(done)
    assert passed == 0
    assert failed > 10
    assert "ZeroDivisionError: of the loss" in done.stdout


@pytest.mark.more
def test_a_fixture_that_breaks_is_a_failure(run: Run) -> None:
    text = PROJECT.replace("def compute", "raise OSError\n\n    def compute")
    done = run(text, "--grpo-vectors", "-k", "clip")
    assert done.returncode == 1
    passed, failed, *others = counts(done)
    assert failed > 100
    assert (passed, others) == (0, [0])


@pytest.mark.more
def test_a_claim_that_is_misspelt(run: Run) -> None:
    text = PROJECT.replace('"token-mean")', '"token_mean")')
    done = run(text, "--grpo-vectors", "-k", "clip")
    assert "aggregate: no vector has 'token_mean'; did you mean 'token-mean'?" in done.stdout


def test_the_outcome_as_json(right) -> None:
    done, document = right
    (found,) = document["fixtures"].values()
    passed, _, not_claimed = counts(done)
    assert [found["passed"], found["not claimed"]] == [passed, not_claimed]
    assert found["flags"]["clip-unused"]["passed"] > 5
    assert document["badge"] == {
        "schemaVersion": 1,
        "label": "grpo vectors",
        "message": f"{passed} of {passed}, {not_claimed} not claimed",
        "color": "green",
    }


def test_the_entry_point_is_the_plugin() -> None:
    """Where the package is installed; from a checkout alone there is none."""
    found = entry_points(group="pytest11", name="grpo-vectors")
    assert {point.value for point in found} <= {PLUGIN[1]}


def test_the_entry_point_imports_neither_numpy_nor_the_package() -> None:
    code = (
        "import sys, grpo_cli.vectors.plugin\n"
        "print(sorted(m for m in sys.modules if m.startswith(('grpo', 'numpy', 'orjson'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == (
        "['grpo_cli', 'grpo_cli.vectors', 'grpo_cli.vectors.plugin', 'grpo_cli.version']"
    )
