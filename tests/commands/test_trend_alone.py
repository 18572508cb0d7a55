"""A log alone, and the threads about runs."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each
from trended import write

from grpo_cli.batch import F64

pytestmark = pytest.mark.more

# ---- ``grpo trend`` of a trainer's log alone: what is found, from when on, and what is said ------


STEPS = 80


def noise(seed: int, size: float) -> F64:
    return size * np.random.default_rng(seed).standard_normal(STEPS)


def from_step(begin: int, values: Any) -> F64:
    """What a series is multiplied with: 1 before a step."""
    factors = np.ones(STEPS)
    factors[begin:] = values
    return factors


TIME = np.arange(STEPS)
SOUND = {
    "reward": 0.3 + 0.004 * TIME + noise(1, 0.03),
    "entropy": np.exp(noise(2, 0.04) - 0.003 * TIME),
    "kl": 0.0005 * TIME * np.exp(noise(3, 0.12)) + 1e-6,
    "grad_norm": 0.2 * np.exp(noise(4, 0.15)),
    "loss": noise(5, 0.01),
    "completions/clipped_ratio": 0.03 * np.exp(noise(6, 0.25)),
    "frac_reward_zero_std": (0.3 + noise(7, 0.05)).clip(0.0, 1.0),
    "sampling/sampling_logp_difference/mean": 0.01 * np.exp(noise(8, 0.15)),
    "eval/tokens": np.where(TIME > 40, 0.0, 9.0),
    "learning_rate": np.full(STEPS, 1e-6),
}
"""A run that learns; what is held out is no series of it."""
MISMATCH = "sampling/sampling_logp_difference/mean"
DEAD, CUT = "frac_reward_zero_std", "completions/clipped_ratio"
RAMP = np.arange(30) / 20 + 0.05

PLANTED = {
    "entropy falls": ("entropy", from_step(50, np.exp(-0.13 * np.arange(30))), 0.0, "down", 20),
    "KL explodes": ("kl", from_step(50, np.exp(0.13 * np.arange(30))), 0.0, "up", 20),
    "KL grows": ("kl", from_step(50, 1.0 + np.arange(30.0)), 0.0, "up", 12),
    "the gradient grows": ("grad_norm", from_step(50, 150.0), 0.0, "up", 5),
    "one step": ("grad_norm", np.where(TIME == 50, 1e9, 1.0), 0.0, "up", 1),
    "every fifth step": (MISMATCH, from_step(50, np.where(TIME[:30] % 5, 1, 30)), 0.0, "up", 16),
    "groups die": (DEAD, from_step(50, 1.0), from_step(50, 1 + RAMP) - 1, "up", 24),
    "responses are cut off": (CUT, from_step(50, 1.0), from_step(50, 1 + RAMP) - 1, "up", 24),
    "impossible": (CUT, np.where(TIME == 50, 1.3 / SOUND[CUT][50], 1.0), 0.0, "up", 1),
    "NaN": ("loss", from_step(50, math.nan), 0.0, "", 1),
    "0": ("grad_norm", from_step(50, 0.0), 0.0, "down", 4),
}


def written(path: Path, series: Mapping[str, Sequence[float]], count: int = STEPS) -> Path:
    """Its first steps, as trainer_state.json."""
    rows = [
        {"step": at + 1} | {name: float(values[at]) for name, values in series.items()}
        for at in range(count)
    ]
    path.write_text(json.dumps({"log_history": rows}))
    return path


def wrong(document: Any) -> list[Any]:
    return [one for one in document["findings"] if one["severity"] == "warning"]


def test_a_sound_log_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    for count in (10, 30, 50, STEPS):
        document = answer("trend", written(path, SOUND, count))
        assert wrong(document) == []
        assert len(document["steps"]) == count
    assert document["verdict"].startswith("no fault found in 8 series over 80 steps")


@each("name", PLANTED)
def test_a_fault_is_found_in_time_and_stays(name: str, tmp_path: Path) -> None:
    """Its own series says it, the way it went, within its steps; and however long the log gets."""
    series, factors, more, way, within = PLANTED[name]
    planted = SOUND | {series: (SOUND[series] * factors + more).clip(-np.inf, 1e12)}
    path = tmp_path / "trainer_state.json"
    assert wrong(answer("trend", written(path, planted, 50))) == []
    every = []
    for count in (50 + within, STEPS):
        found = wrong(answer("trend", written(path, planted, count)))
        every.append({(one["metric"], one["direction"]): one for one in found})
    assert {*every[0]} == {(series, way)}
    (first,), last = every[0].values(), every[1][series, way]
    assert first["onset"] == last["onset"]
    assert 51 <= first["onset"] <= 51 + within
    assert first["seen"] <= 50 + within
    assert last["period"] == (5 if name == "every fifth step" else 0)


def test_what_a_log_says_is_one_event_with_a_fix(tmp_path: Path) -> None:
    later = from_step(50, 100.0)
    planted = SOUND | {name: SOUND[name] * later for name in (MISMATCH, "grad_norm")}
    path = written(tmp_path / "trainer_state.json", planted)
    (event,) = [one for one in answer("trend", path)["events"] if one["severity"] == "warning"]
    assert (event["step"], event["metrics"]) == (51, [MISMATCH, "grad_norm"])
    result = run("trend", path, "--limit", "2", "--fail-on", "findings")
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())
    assert shown.startswith("step 51: the log-probs of engine and trainer diverged fix: ")
    for part in (
        "last good step: 50",
        "before → after: ",
        "fix: compare precision",
        "only records show",
    ):
        assert part in shown
    brief = run("trend", path, "--fail-on", "findings", "-q")
    assert brief.exit_code == 1
    assert " ".join(brief.stdout.split()) == answer("trend", path)["verdict"]
    assert run("trend", path, "--fail-on", "nothing>1").exit_code == 2
    assert run("trend", path, "--fail-on", "grad_norm>1e9").exit_code == 0


def test_exports_of_tensorboard_are_one_run(tmp_path: Path) -> None:
    """A file a series."""
    for name in ("entropy", "kl"):
        rows = "".join(f"1.0,{at + 1},{value}\n" for at, value in enumerate(SOUND[name]))
        (tmp_path / f"run-x-tag-{name}.csv").write_text(f"Wall time,Step,Value\n{rows}")
    document = answer("trend", *sorted(tmp_path.iterdir()))
    assert {*document["steps"][0]} == {"step", "file", "worst", "entropy", "kl"}


@pytest.mark.parametrize("alone", [False, True])
def test_a_step_with_nan_is_a_row_and_a_finding(alone: bool, tmp_path: Path) -> None:
    """The other steps, and the other records of the step, are as without it."""
    rows = [{"step": at, "log_probs": [[-1.0, -2.0]], "rewards": [1.0]} for at in (1, 2, 2, 3)]
    rows[1]["log_probs"] = [[-1.0, math.nan]]
    path = write(tmp_path / "a.jsonl", (one for one in rows if not alone or one is not rows[2]))
    document = answer("trend", path, "-v", "dr")
    nll = [one["nll"] for one in document["steps"]]
    assert nll == [1.5, None if alone else 1.5, 1.5]
    assert [one["left_out"] for one in document["steps"]] == [None, 1, None]
    sound = run("trend", write(tmp_path / "b.jsonl", rows[:1]), "--fields", "left_out").stdout
    assert "1     –" in sound
    (found,) = document["findings"]
    assert (found["metric"], found["kind"], found["onset"]) == ("log_probs", "impossible", 2)
    assert found["sentence"] == f"log_probs[0][1] is NaN ({path}:2, ignored) at step 2"


def test_a_share_that_rounding_puts_above_1_is_no_finding(tmp_path: Path) -> None:
    """Every ratio is e^0.04, and Σρ and Σρ² are rounded: the effective sample size is 1 + 2⁻⁵²."""
    old = [[-0.5, -1.0], [-0.25], [-0.75, -0.5], [-1.5]]
    rows = [
        {"step": step, "log_probs_new": [[one + 0.01 * step for one in row] for row in old],
         "log_probs_old": old, "rewards": [1, 0, 0.5, step / 10]}
        for step in range(20)
    ]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    document = answer("trend", path, "-v", "dr")
    assert max(one["ess"] for one in document["steps"]) > 1
    assert "ess" not in {one["metric"] for one in document["findings"]}


def test_a_share_of_few_groups_is_no_limit_passed(tmp_path: Path) -> None:
    """One group a step is dead or not: three dead ones of five steps are chance."""
    dead = (np.random.default_rng(9).random(STEPS) < 0.4).astype(float)
    path = written(tmp_path / "trainer_state.json", SOUND | {DEAD: dead})
    assert wrong(answer("trend", path)) == []


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


def test_a_clip_ratio_that_triples_is_found(tmp_path: Path) -> None:
    """Shares near 0.1 are of far more than ten tokens, where eighty of them all differ."""
    draw = np.random.default_rng(5)
    level = np.concatenate([np.full(52, 0.1), np.linspace(0.11, 0.33, 28)])
    shares = level + draw.normal(0.0, 0.01, 80)
    rows = [f"{step},{share:.6g}" for step, share in enumerate(shares.tolist())]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["step,train/clip_ratio", *rows]) + "\n")
    (found,) = json.loads(run("trend", log, "--json").stdout)["findings"]
    assert found["metric"] == "train/clip_ratio"
    assert 48 <= found["onset"] <= 58
