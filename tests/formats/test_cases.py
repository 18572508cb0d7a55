"""What dumps of each format are read as: the files of ``cases``.

A case is a comment, flags, the lines of a file, and what ``grpo convert`` makes of these (``>``).
Then what is told of the file (``!``), but for what ``grpo formats`` says of the format, and the
objective of each record under ``dr`` (``=``) or why it has none. Of a dump without log-probs,
``grpo trend`` says what there is (``~``). ``GRPO_WRITE_CASES=1`` writes what comes now into the
files, to be read as a diff.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from command import answer, run

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
_MARKS = (">", "!", "=", "~")
_SIGNAL = "reward_mean,groups_equal,length_mean"


@pytest.fixture(scope="module")
def known() -> set[str]:
    """What is said of every file of a format."""
    found = answer("formats")["formats"]
    lacks = {f"note: {one['name']}: {lack}" for one in found for lack in one["lacks"]}
    return lacks | {f"note: read as {one['name']} ({one['title']})" for one in found}


def told(case: list[str], path: Path, known: set[str]) -> list[str]:
    """A case with what comes of it now."""
    flags, lines = shlex.split(case[1].removeprefix("$")), case[2:]
    given = [line for line in lines if not line.startswith(_MARKS)]
    path.write_text("".join(f"{line}\n" for line in given), encoding="utf-8")

    def after(mark: str, text: str) -> list[str]:
        found = [line.removeprefix("grpo: ") for line in text.splitlines()]
        return [f"{mark} {line.replace(str(path), 'x')}" for line in found if line not in known]

    made = run("convert", path, "--on-error", "skip", *flags)
    rows = after(">", made.stdout) + after("!", made.stderr)
    if "nothing can be evaluated" in made.stderr:
        rows += after("~", run("trend", path, "-qf", "jsonl", "--fields", _SIGNAL, *flags).stdout)
    else:
        words = ("-qv", "dr", "--only", "objective", "--on-error", "skip")
        numbers = run("eval", path, *words, *flags)
        faults = [one for one in after("=", numbers.stderr) if not one.startswith("= skipped")]
        rows += after("=", numbers.stdout) + faults
    return [*case[:2], *given, *rows]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_is_read(path: Path, tmp_path: Path, known: set[str]) -> None:
    cases = [case.splitlines() for case in path.read_text(encoding="utf-8").split("\n\n")]
    found = [told(case, tmp_path / "x", known) for case in cases]
    if "GRPO_WRITE_CASES" in os.environ:
        path.write_text("\n\n".join("\n".join(case) for case in found) + "\n", encoding="utf-8")
    for case, now in zip(cases, found, strict=True):
        assert now == case
