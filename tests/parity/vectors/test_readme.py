"""The example of ``grpo help vectors``, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from grpo_cli.vectors import case
from grpo_cli.vectors.claims import OPTIONS, STAGES, vocabulary

from .test_frameworks import COUNTS, PLUGIN, ROOT

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
    cases = case.cases()
    assert f"{len(cases)} small inputs" in README
    executed = sum(bool(case.executed) for case in cases)
    assert f"{executed} of the {len(cases)} cases" in README
    for counts in (found for module in COUNTS.values() for found in module.values()):
        passed, _, xfailed, not_claimed = counts
        assert f"| {passed} | {xfailed} | {not_claimed} |" in README
