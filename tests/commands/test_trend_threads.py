"""The runs of issue threads in samples/threads: the command beside each says what happened."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from command import run
from files import each

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
