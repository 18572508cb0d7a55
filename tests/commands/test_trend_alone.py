"""A log alone, and the threads about runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command import answer, run
from files import each

pytestmark = pytest.mark.more

# ---- ``grpo trend`` of a trainer's log alone: what is found, from when on, and what is said ------


def test_exports_of_tensorboard_are_one_run(tmp_path: Path) -> None:
    """A file a series."""
    for name in ("entropy", "kl"):
        rows = "".join(f"1.0,{at},{1 / at}\n" for at in range(1, 20))
        (tmp_path / f"run-x-tag-{name}.csv").write_text(f"Wall time,Step,Value\n{rows}")
    document = answer("trend", *sorted(tmp_path.iterdir()))
    assert {*document["steps"][0]} == {"step", "file", "worst", "entropy", "kl"}


# ---- the runs of issue threads in samples/threads: the command beside each says what happened ----


THREADS = Path(__file__).parents[2] / "samples" / "threads"
ROWS = [
    tuple(cell.strip(" `") for cell in line.split("|")[1:4])
    for line in (THREADS / "README.md").read_text().splitlines()
    if "runs/" in line and line.startswith("| ")
]


@each("row", ROWS, ids=lambda row: row[0])
def test_a_command_answers_a_thread(row: tuple[str, str, str]) -> None:
    _, command, says = row
    words = [str(THREADS / one) if "runs/" in one else one for one in shlex.split(command)[1:]]
    result = run(*words, COLUMNS="200")
    assert result.exit_code in (0, 1), result.stderr
    assert says in re.sub(r"\s+", " ", result.stdout)


def test_every_run_is_asked_about() -> None:
    assert {path.name for path in (THREADS / "runs").iterdir()} == {
        re.search(r"runs/(\S+)", row[1])[1] for row in ROWS
    }
