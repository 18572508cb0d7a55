"""What ``grpo trend`` says of a CSV log: its table, fixes, forecasts, and another log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from command import answer, run

pytestmark = pytest.mark.more


def csv_of(path: Path, **columns: Sequence[float]) -> Path:
    """A CSV log; its names are those of the arguments, with "__" for a slash."""
    head = ["step", *(name.replace("__", "/") for name in columns)]
    rows = [",".join(map(str, row)) for row in zip(count(1), *columns.values(), strict=False)]
    path.write_text("\n".join([",".join(head), *rows]) + "\n")
    return path


def test_the_fix_is_that_of_the_metric(tmp_path: Path) -> None:
    """Of lengths that grow it is not that of the KL; what is NaN has its own."""
    draw = np.random.default_rng(1)
    since = np.maximum(np.arange(60) - 40, 0)
    kl = 0.01 * np.exp(0.3 * since + draw.normal(0.0, 0.1, 60))
    longer = 100 * np.exp(0.1 * since + draw.normal(0.0, 0.02, 60))
    for columns, words in (
        ({"completion_length": longer, "kl": kl}, "check whether the reward favours length"),
        ({"kl": np.where(since == 1, np.nan, 0.01)}, "go back to the checkpoint before that step"),
    ):
        path = csv_of(tmp_path / "a.csv", **columns)
        (event, *_) = answer("trend", path)["events"]
        assert event["fix"].startswith(words)


def test_longer_responses_that_are_paid_at_once_are_a_finding(tmp_path: Path) -> None:
    """In runs of 30 steps whose correlation has a noise of 0.2 before; no noise alone is one."""
    counts = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0.0, 0.2, 30).clip(-0.8, 0.8)
        jumps = np.where(np.arange(30) < 18, noise, 0.9 + noise / 6)
        found = [
            [one["onset"] for one in answer("trend", path)["findings"]]
            for columns in (jumps, noise)
            for path in (csv_of(tmp_path / "a.csv", reward_length_corr=columns),)
        ]
        assert {*found[0]} <= {18, 19}
        assert found[1] == []
        counts.append(len(found[0]))
    assert sum(counts) >= 14


def test_step_is_a_column_that_can_be_asked_for(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", loss=[0.5, 0.25], kl=[0.1, 0.2])
    for fields, head in (("step,kl", "step,file,kl"), ("step", "step,file")):
        assert run("trend", path, "-f", "csv", "--fields", fields).stdout.split()[0] == head
        shown = run("trend", path, "--fields", fields).stdout
        assert ("kl" in shown.split()) == ("kl" in fields)
        assert "loss" not in shown.split()


def test_what_came_later_is_not_at_the_same_time(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    kl, length = (np.where(np.arange(60) < at, 1.0, 3.0) for at in (42, 40))
    noise = np.exp(draw.normal(0.0, 0.02, 60))
    path = csv_of(tmp_path / "a.csv", kl=kl * noise, completion_length=length * noise)
    found = answer("trend", path)
    assert found["verdict"].startswith("step 41: responses became longer; last good step 40; ")
    summary = next(one["summary"] for one in found["events"] if one["step"] == 41)
    assert summary.startswith("step 41: responses became longer (medians: completion_length ")
    assert summary.endswith("); then kl rose (step 43)")
