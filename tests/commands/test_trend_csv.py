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


def test_a_narrow_table_of_a_log_keeps_what_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The KL before the spread of rewards; a prefix that all names have is said once."""
    names = ("loss", "reward", "reward_std", "completion_length", "kl", "entropy", "clip_ratio")
    columns = {f"train__{name}": [0.123456, 0.25] for name in (*names, "grad_norm")}
    monkeypatch.setenv("COLUMNS", "72")
    shown = run("trend", csv_of(tmp_path / "a.csv", **columns)).stdout
    assert "hidden: train/reward_std (--fields '?')" in shown
    assert "all names begin with train/" in shown
    assert "train/kl" not in shown.replace("not watched", "")


def test_a_rewards_slope_against_another(tmp_path: Path) -> None:
    """A reward that rises twice as fast differs; two random walks do not."""
    draw = np.random.default_rng(3)
    once, twice = (n * np.arange(40) + draw.normal(0.0, 1.0, 40) for n in (1, 2))
    walks = [np.cumsum(draw.normal(0.0, 1.0, 40)) for _ in range(2)]
    for (first, second), differs in (((once, twice), True), (walks, False)):
        paths = [
            csv_of(tmp_path / f"{name}.csv", reward=values)
            for name, values in (("a", first), ("b", second))
        ]
        (found,) = answer("trend", paths[0], "--against", paths[1])["metrics"]
        assert found["differs"] is differs
    shown = run("trend", tmp_path / "a.csv", "--against", tmp_path / "b.csv").stdout
    assert "e+" not in shown


def test_the_fix_is_that_of_a_kl_which_moved_as_well(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    since = np.maximum(np.arange(60) - 40, 0)
    entropy = 1.5 * 0.6**since + draw.normal(0.0, 0.01, 60) + 0.1
    kl = 0.01 * np.exp(0.3 * since + draw.normal(0.0, 0.1, 60))
    for columns, words in (
        ({"entropy": entropy}, "raise ε_high"),
        ({"entropy": entropy, "kl": kl}, "lower the learning rate"),
    ):
        (event, *_) = answer("trend", csv_of(tmp_path / "a.csv", **columns))["events"]
        assert words in event["fix"]
        assert "if" not in event["fix"].split()  # which way it went is known
        assert ("ε_high" in event["fix"]) == ("kl" not in columns)


def test_the_fix_is_that_of_the_metric(tmp_path: Path) -> None:
    """Of lengths that grow it is not that of the KL; what is NaN, or becomes short, has its own."""
    draw = np.random.default_rng(1)
    since = np.maximum(np.arange(60) - 40, 0)
    kl = 0.01 * np.exp(0.3 * since + draw.normal(0.0, 0.1, 60))
    longer = 100 * np.exp(0.1 * since + draw.normal(0.0, 0.02, 60))
    for columns, words in (
        ({"completion_length": longer, "kl": kl}, "check whether the reward favours length"),
        ({"completion_length": 1e4 / longer, "kl": kl}, "raise β"),
        ({"completion_length": 1e4 / longer}, "read the shortest responses: "),
        ({"kl": np.where(since == 1, np.nan, 0.01)}, "go back to the checkpoint before that step"),
    ):
        path = csv_of(tmp_path / "a.csv", **columns)
        (event, *_) = answer("trend", path)["events"]
        assert event["fix"].startswith(words)


def test_the_column_of_a_length_hack_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    later = np.arange(60) >= 40
    names = ("completion_length", "kl", "entropy", "grad_norm", "clip_ratio", "loss", "reward")
    columns = {name: (0.1 + 0.3 * later) * np.exp(draw.normal(0.0, 0.05, 60)) for name in names}
    columns["reward_length_corr"] = 0.05 + 0.8 * later + draw.normal(0.0, 0.03, 60)
    monkeypatch.setenv("COLUMNS", "50")
    path = csv_of(tmp_path / "a.csv", **columns)
    assert "reward_length_corr" in {one["metric"] for one in answer("trend", path)["findings"]}
    shown = run("trend", path).stdout
    assert any(line.split()[-1:] == ["corr"] for line in shown.splitlines())  # its head


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
    assert sum(counts) >= 18


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
    assert summary.endswith("); then kl (step 43)")
