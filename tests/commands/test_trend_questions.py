"""Questions about a run: ``grpo trend --at``, ``--by``; the truth is in how the run is made."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from trended import SAMPLES, series, write

import grpo_cli
from grpo_cli.commands.trend.questions.against import Difference, walked_mean

CASES = Path(__file__).parent / "cases" / "trend_questions.txt"
BROKEN_RANK, SINCE, STEPS = 2, 26, 40
FORGOTTEN = "p3"


def records(seed: int = 3, broken: float = 0.3) -> Iterator[dict[str, Any]]:
    """A run of four ranks: the engine of one drifts away, and one prompt is forgotten."""
    draw = random.Random(seed)
    for step in range(STEPS):
        for rank in range(4):
            size = broken if rank == BROKEN_RANK and step >= SINCE else 0.01
            prompt = f"p{(step * 4 + rank) % 8}"
            right = 0.05 if prompt == FORGOTTEN and step >= SINCE else 0.8
            old = [[-draw.expovariate(1.0) - 0.3 for _ in range(8)] for _ in range(6)]
            moved: dict[str, Any] = {}
            for name, far in (("log_probs_new", 0.05), ("log_probs_rollout", size)):
                near = ([min(one + draw.gauss(0, far), -1e-3) for one in row] for row in old)
                moved[name] = [[round(one, 6) for one in row] for row in near]
            rewards = [float(draw.random() < right) for _ in range(6)]
            endings = ["length" if draw.random() < 0.1 + 0.3 * one else "stop" for one in rewards]
            old = [[round(one, 6) for one in row] for row in old]
            where = {"id": f"{step}-{rank}", "step": step, "meta": {"rank": rank}, "prompt": prompt}
            moved |= {"log_probs_old": old, "rewards": rewards, "finish_reasons": endings}
            yield where | moved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("questions")
    write(made / "run.jsonl", records())
    write(made / "other.jsonl", records(4))
    for seed in (5, 6, 7):
        write(made / f"healthy/seed_{seed}/run.jsonl", records(seed, broken=0.01))
        write(made / f"broken/seed_{seed}/run.jsonl", records(seed + 10))
    return made


def test_screens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cases/trend_questions.txt``: commands and what they print; ``GRPO_WRITE_CASES=1``."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    text = CASES.read_text(encoding="utf-8") if CASES.exists() else ""
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    found = []
    for line in commands:
        result = run(*line.split()[1:])
        found.append(f"$ {line}\n{result.stdout}{result.stderr}[{result.exit_code}]\n")
    if "GRPO_WRITE_CASES" in os.environ:
        CASES.write_text("\n".join(found), encoding="utf-8")
    assert "\n".join(found) == text


@pytest.mark.more
def test_at_agrees_with_the_run(folder: Path) -> None:
    path, words = folder / "run.jsonl", ("-v", "dr")
    steps = answer("trend", path, *words)["steps"]
    found = answer("trend", path, *words, "--at", SINCE)
    by_name = {one["name"]: one for one in found["metrics"]}
    assert all(by_name[name]["at"] == steps[SINCE][name] for name in by_name)
    before = sorted(one["mismatch.k3"] for one in steps[:SINCE])
    assert by_name["mismatch.k3"]["before"] == (before[12] + before[13]) / 2
    printed = run("trend", path, *words, "--at", SINCE).stdout.splitlines()
    named = [line.split(" ")[0] for line in printed]
    here = {one["metric"] for one in found["findings"]}
    assert "mismatch.mult" in here.intersection(named) == here  # which has a limit alone
    assert found["check"] == answer("check", path, "--where", f"step=={SINCE}")
    assert found["worst"] == steps[SINCE]["worst"]
    assert {one["record"] for one in found["groups"] if "mismatch" in one["worst_in"]} == {
        f"{SINCE}-{BROKEN_RANK}"
    }


@pytest.mark.more
def test_a_difference_since_its_onset(folder: Path) -> None:
    other = folder / "healthy" / "seed_5"
    found = answer("trend", folder / "run.jsonl", "--against", other, "-v", "dr")["metrics"]
    (one,) = [one for one in found if one["name"] == "mismatch.k3"]
    assert one["since"] == SINCE
    assert one["low"] < one["difference"] < one["high"] < 0.0
    first, second = (
        [step["mismatch.k3"] for step in answer("trend", path, "-v", "dr")["steps"]]
        for path in (folder / "run.jsonl", other)
    )
    assert one["first"] == pytest.approx(np.mean(first[SINCE:]))
    assert one["second"] == pytest.approx(np.mean(second[SINCE:]))


def test_at_has_all_records_of_a_step_whatever_field_holds_it(tmp_path: Path) -> None:
    """And groups of one id are each of their own step."""
    draw = np.random.default_rng(4)

    def record(step: int, number: int) -> dict[str, object]:
        old = -draw.exponential(0.7, (4, 6)) - 0.1
        new = old - 0.05 * draw.random((4, 6)) - 3.0 * (step == number == 3)
        columns = {"log_probs_new": new.tolist(), "log_probs_old": old.tolist()}
        field = "global_step" if number % 2 else "step"
        return {field: step, "id": f"p{number}", "rewards": [1.0, 0.0, 0.0, 1.0]} | columns

    path = tmp_path / "a.jsonl"
    lines = [json.dumps(record(step, number)) for step in range(6) for number in range(4)]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = answer("trend", path, "-v", "dr", "--at", 3)
    assert found["check"]["records"] == 4
    (worst,) = [one for one in found["groups"] if "ratio" in one["worst_in"]]
    assert (worst["record"], worst["line"]) == ("p3", 16)


def test_flags_that_a_log_does_not_use_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"step": 1, "loss": 0.5, "grad_norm": 1.0}])
    result = run("trend", path, "-v", "dapo", "-p", "epsilon_high=0.3")
    note = "-v dapo --epsilon-high 0.3 is not used: a log of metrics has no tokens to evaluate"
    assert (result.exit_code, note in result.stderr) == (0, True)
    (notice,) = grpo_cli.trend(path, "dapo").notices
    assert notice == 'variant="dapo" is not used: a log of metrics has no tokens to evaluate'
    assert not grpo_cli.trend(path).notices


def test_the_part_that_carries_a_change(folder: Path) -> None:
    found = answer("trend", folder / "run.jsonl", "-v", "dr", "--by", "meta.rank")
    first = [one for one in found["changes"] if one["metric"] == "mismatch.k3"]
    assert {one["step"] for one in first} == {SINCE}
    assert first[0]["part"] == BROKEN_RANK
    assert first[0]["share"] == pytest.approx(1.0, abs=0.02)
    assert sum(one["share"] for one in first) == pytest.approx(1.0, abs=1e-9)
    assert all(abs(one["size"]) < 4 for one in first[1:])


def test_runs_of_lone_responses_are_noted(tmp_path: Path) -> None:
    """That which has groups is not."""
    lone, grouped = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [{"step": step, "uid": f"{step}/{at // 4}", "log_probs": [-1.0], "reward": at % 2}
            for step in range(12) for at in range(8)]  # fmt: skip
    write(lone, rows)
    write(grouped, ({"step": step, "log_probs": [[-1.0]] * 4, "rewards": [0, 1] * 2}
                    for step in range(12)))  # fmt: skip
    notes = [one for one in run("trend", lone, "--against", grouped).stderr.splitlines()
             if "is a group of its own" in one]  # fmt: skip
    assert len(notes) == 1
    assert notes[0].startswith(f"grpo: note: {lone}: each record is a group of its own")


@pytest.mark.more
def test_prompts_of_one_step_each_cannot_be_compared(tmp_path: Path) -> None:
    """Not those of which one comes back."""
    rows = [one | {"prompt": f"q{one['step']}-{one['meta']['rank']}"} for one in records()]
    path, words = write(tmp_path / "a.jsonl", rows), ("-v", "dr", "--by", "prompt")
    said = "each prompt occurs in one step, so prompts cannot be compared"
    found = answer("trend", path, *words)
    assert (found["verdicts"], found["changes"], len(found["parts"])) == ([said], [], len(rows))
    assert run("trend", path, *words).stdout.strip() == said
    rows[-1]["prompt"] = rows[0]["prompt"]
    assert said not in answer("trend", write(path, rows), *words)["verdicts"]


@pytest.mark.more
def test_runs_that_differ_by_their_seed(folder: Path) -> None:
    for first, second in (("run.jsonl", "other.jsonl"), ("healthy/seed_5", "healthy/seed_6")):
        found = answer("trend", folder / first, "--against", folder / second, "-v", "dr")
        assert not [one for one in found["metrics"] if one["differs"]]


@pytest.mark.more
def test_runs_that_are_equal_at_first(folder: Path, tmp_path: Path) -> None:
    """Two runs of one seed until something is changed: compared from there on."""
    lines = (folder / "run.jsonl").read_bytes().splitlines(keepends=True)
    others = (folder / "other.jsonl").read_bytes().splitlines(keepends=True)
    early = sum(json.loads(one)["step"] < 10 for one in lines)
    second = tmp_path / "second.jsonl"
    second.write_bytes(b"".join(lines[:early] + others[early:]))
    found = answer("trend", folder / "run.jsonl", "--against", second, "-v", "dr")
    assert found["steps"] == [10, 39, 30]
    assert "the runs are equal before step 10" in found["notes"][0]
    assert not [one for one in found["metrics"] if one["differs"]]


def test_an_interval_that_misses_0_is_marked(tmp_path: Path) -> None:
    """It does not remain after the correction, and must not read as no difference."""
    found = [
        Difference("reward_mean", 0.5, 0.7, 0.2, low, 0.3, differs)
        for low, differs in ((0.1, False), (-0.1, False), (0.1, True))
    ]
    assert [one.misses_0 and not one.differs for one in found] == [True, False, False]


def test_a_walk_is_no_difference() -> None:
    """Random walks, which two seeds are, against noise around a difference that is there."""
    draw = np.random.default_rng(31)
    walks = [np.cumsum(draw.normal(size=120)) + draw.normal(size=120) for _ in range(100)]
    assert sum(walked_mean(one).is_beyond(0.95) for one in walks) <= 12
    apart = [0.8 + draw.normal(size=120) for _ in range(100)]
    assert sum(walked_mean(one).is_beyond(0.95) for one in apart) >= 90


def test_the_last_good_step(folder: Path) -> None:
    found = answer("trend", folder / "run.jsonl", "-v", "dr")
    assert found["last_good_step"] == SINCE - 1
    healthy = answer("trend", folder / "healthy" / "seed_5", "-v", "dr")
    assert "last_good_step" not in healthy


def test_what_a_step_is_compared_with_is_from_before_its_change(folder: Path) -> None:
    """The median before is that of the finding, however many changed steps came since."""
    path = folder / "run.jsonl"
    (finding,) = (
        one
        for one in answer("trend", path, "-v", "dr")["findings"]
        if one["metric"] == "mismatch.k3"
    )
    found = answer("trend", path, "-v", "dr", "--at", str(STEPS - 2))
    (metric,) = (one for one in found["metrics"] if one["name"] == "mismatch.k3")
    assert metric["before"] == finding["before"]
    assert metric["size"] > 20
    assert next(iter(found["worst"])) == "mismatch", "where the odd metric is worst comes first"


@pytest.mark.more
def test_a_comparison_says_which_metrics_differ_from_which_step_on(folder: Path) -> None:
    """In one line, however narrow the screen: the first line of a pipe is all of it."""
    paths = (folder / "healthy" / "seed_5" / "run.jsonl", folder / "run.jsonl")
    shown = run("trend", paths[0], "-v", "dr", "--against", paths[1]).stdout
    first = shown.splitlines()[0]
    assert f"mismatch.k3 (from step {SINCE})" in first
    assert f"Compared: {STEPS} steps" in shown


def test_a_possible_cause_is_what_check_finds(tmp_path: Path) -> None:
    """Where it finds nothing in the worst record, its command is not offered."""
    rewards = {"rewards": [1.0] * 20 + [0.2] * 20}
    shown = run("trend", series(tmp_path / "a.jsonl", rewards), "-v", "dr").stdout
    assert "reward_mean 1 → 0.2" in shown
    assert "grpo check" not in shown
    shown = run("trend", SAMPLES / "temperature.jsonl.gz").stdout
    assert "# all findings" in shown
    threads = Path(__file__).parents[2] / "samples/threads"
    for name, code in (("nemo-rl-1330", "rollout-mismatch"), ("verl-6564", "last-token")):
        (event, *_) = answer("trend", threads / f"{name}.jsonl")["events"]
        assert [one.partition(":")[0] for one in event["check"]] == [code]


def test_a_comparison_without_a_first_run_says_so() -> None:
    words = [sys.executable, "-m", "grpo_cli", "trend", "--against", "samples/run/healthy.jsonl.gz"]
    run = partial(subprocess.run, words, capture_output=True, text=True, cwd=SAMPLES.parents[1])
    result = run(stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stdout) == (2, "")
    assert "the first run is missing" in result.stderr
    with gzip.open(SAMPLES / "healthy.jsonl.gz", "rt") as piped:
        result = run(input=piped.read())
    assert (result.returncode, "all 25 metrics are equal" in result.stdout) == (0, True)


def test_first_tokens_that_one_run_masks(tmp_path: Path) -> None:
    """From step 12 on; the other run has no mask."""
    draw, runs = np.random.default_rng(5), list[str]()
    for name in ("a", "b"):
        rows = list[dict[str, Any]]()
        for step in range(24):
            new = -draw.gamma(0.6, 0.8, (8, 12)) - 1e-3
            old = np.minimum(new + draw.normal(0.0, 0.02, new.shape), -1e-6)
            mask = [[int(step < 12), *[1] * 11]] * 8
            rows.append(
                {"step": step, "rewards": draw.integers(0, 2, 8).astype(float).tolist()}
                | {"log_probs_new": new.tolist(), "log_probs_old": old.tolist()}
                | ({"mask": mask} if name == "a" else {})
            )
        runs.append(write(tmp_path / f"{name}.jsonl", rows))
    for first, second in (runs, runs[::-1]):
        found = answer("trend", first, "--against", second, "-v", "dapo")["metrics"]
        (row,) = (one for one in found if one["name"] == "masked_start")
        assert (row["differs"], row["since"], {row["first"], row["second"]}) == (True, 12, {0, 1})


def test_what_rounding_leaves_of_a_short_run_is_not_named(tmp_path: Path) -> None:
    """Each ratio of the second run is lower by 2e-16."""
    draw, rows = np.random.default_rng(5), list[dict[str, Any]]()
    for step in range(12):
        old = -draw.uniform(0.2, 1.2, (4, 8))
        columns = {"log_probs_new": old + 0.01, "log_probs_old": old, "rewards": draw.random(4)}
        rows.append({"step": step, **{name: one.tolist() for name, one in columns.items()}})
    first = write(tmp_path / "a.jsonl", rows)
    for one in rows:
        one["log_probs_new"] = (np.array(one["log_probs_new"]) * (1 + 3e-16)).tolist()
    second = write(tmp_path / "b.jsonl", rows)
    shown = run("trend", first, "--against", second, "-v", "dr").stdout
    assert shown.splitlines()[0] == "12 steps (0 to 11) are too few to decide"
