"""``grpo diff``: where two runs that should be identical first differ."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each
from trended import SAMPLES, write

from grpo_cli.records import Raw

Record = dict[str, Any]
Records = list[Record]


def records() -> Records:
    draw, found = random.Random(1), []
    for step in range(3):
        for number in range(2):
            widths = [draw.randint(1, 5) for _ in range(3)]
            rows = [[-draw.random() - 0.01 for _ in range(width)] for width in widths]
            record: Record = {
                "id": f"{step}/{number}",
                "step": step,
                "tokens": [[draw.choice("abc") for _ in row] for row in rows],
                "log_probs_new": rows,
                "log_probs_rollout": [[*row] for row in rows],
                "rewards": [draw.random() for _ in rows],
                "group_ids": ["p", "p", "q"],
                "hyperparameters": {"beta": 0.0},
            }
            found.append(record)
    return found


RUN = records()
KNOWN = next(one for one in RUN if one["id"] == "1/1")


def write_run(folder: Path, some: Records) -> Path:
    """Writes a file a step."""
    for step in {one["step"] for one in some}:
        write(folder / f"{step}.jsonl", [one for one in some if one["step"] == step])
    return folder


def diff(folder: Path, first: Records, second: Records, *flags: str) -> Any:
    here = folder / str(len([*folder.iterdir()]))
    return answer("diff", write_run(here / "a", first), write_run(here / "b", second), *flags)


def changed(folder: Path, change: Callable[[Record], Any], *flags: str) -> Any:
    """The difference that a change of record 1/1 makes."""
    other = copy.deepcopy(RUN)
    change(next(one for one in other if one["id"] == "1/1"))
    return diff(folder, RUN, other, *flags)


WIDTH = len(KNOWN["tokens"][1])


def test_every_number_of_what_differs(tmp_path: Path) -> None:
    """The first place that is too far apart, and the largest distance of all in its record.

    Causes come before effects.
    """

    def change(one: Record) -> None:
        one["log_probs_new"][0][0] += 1e-9  # less than the tolerance
        one["log_probs_new"][1][-1] -= 0.25
        one["log_probs_new"][2][0] -= 0.5
        one["rewards"][1] += 0.125
        one["rewards"][2] -= 2.0
        one["group_ids"] = ["p", "q", "p"]
        one["hyperparameters"] = {"beta": 5e-7, "epsilon": 0.25, "dual_clip": 3.0}

    found = changed(tmp_path, change, "--tolerance", "1e-6")
    assert (found["agreed_until"], found["steps"], found["records"]) == (0, 1, 4)
    assert found["tokens"] == sum(len(row) for one in RUN[:4] for row in one["log_probs_new"])
    names = ("column", "response", "token", "first", "second")
    new, reward = KNOWN["log_probs_new"][1][-1], KNOWN["rewards"][1]
    settings = {"epsilon_low": 0.25, "epsilon_high": 0.25, "dual_clip": 3.0}
    assert [tuple(one[name] for name in names) for one in found["partings"]] == [
        ("groups", 1, None, "with response 0", "with response 1"),
        ("rewards", 1, None, reward, reward + 0.125),
        ("hyperparameters", None, None, dict.fromkeys(settings), settings),
        ("log_probs_new", 1, WIDTH - 1, new, new - 0.25),
    ]
    sizes = [one["difference"] for one in found["partings"]]
    assert sizes == [None, pytest.approx(2.0), None, pytest.approx(0.5)]


def test_losses_that_differ_are_a_difference(tmp_path: Path) -> None:
    """Also where all that they are made from is equal, as with another KL penalty."""
    runs = [[one | {"loss": loss} for one in RUN] for loss in (0.25, 0.5)]
    (found,) = diff(tmp_path, *runs)["partings"]
    assert (found["column"], found["first"], found["second"]) == (
        "expected",
        {"loss": 0.25},
        {"loss": 0.5},
    )
    assert diff(tmp_path, runs[0], runs[0])["ok"]
    both = [one | {"expected": {"loss": 0.75}} for one in runs[0]]
    (found,) = diff(tmp_path, both, runs[1])["partings"]
    assert found["first"] == {"loss": 0.75}, "which trend takes as well"


# ---- noise and faults ---------------------------------------------------------------------------


def long_run(change: Callable[[random.Random, int, float], float] | None = None) -> Records:
    """Eight steps of 3 × 60 tokens; ``change``: of a step and a log-prob of the second run."""
    draw, noise, found = random.Random(2), random.Random(3), []
    for step in range(8):
        rows = [[-draw.expovariate(1.0) * draw.random() for _ in range(60)] for _ in range(3)]
        if change is not None:
            rows = [[min(change(noise, step, one), 0.0) for one in row] for row in rows]
        found.append({"id": str(step), "step": step, "log_probs_new": rows, "rewards": [1, 0, 2.0]})
    return found


def rounded(draw: random.Random, one: float) -> float:
    return one * (1 + draw.uniform(-1, 1) * 2.0**-22)


def of_engine(draw: random.Random, one: float) -> float:
    return one + draw.gauss(0, 0.02) * -math.expm1(one)


NOISE = {
    "rounding": lambda draw, step, one: rounded(draw, one),
    "engine": lambda draw, step, one: of_engine(draw, one),
}


@each("kind", [*NOISE])
def test_noise_alone_is_no_difference(kind: str, tmp_path: Path) -> None:
    found = diff(tmp_path, long_run(), long_run(NOISE[kind]))
    (noise,) = found["noise"]
    assert (found["partings"], found["ok"], found["agreed_until"]) == ([], False, 7)
    assert (noise["kind"], noise["column"], noise["numbers"]) == (kind, "log_probs_new", 8 * 180)
    assert noise["largest"] < {"rounding": 4e-6, "engine": 0.1}[kind]
    other = long_run(NOISE[kind])
    other[6]["log_probs_new"][1][7] -= 2.0  # of which one token stands out
    (one,) = diff(tmp_path, long_run(), other)["partings"]
    assert (one["step"], one["response"], one["token"]) == (6, 1, 7)
    assert one["difference"] == pytest.approx(2.0, abs=0.1)


def at_step(step: int, kind: str, change: Callable[[float], float]) -> Any:
    """Noise, and one more change of all tokens from a step on."""

    def changed(draw: random.Random, now: int, one: float) -> float:
        noisy = NOISE[kind](draw, now, one)
        return change(noisy) if now >= step else noisy

    return changed


@each(
    ("kind", "step", "change"),
    [
        ("rounding", 5, lambda one: one - 1e-4),
        ("rounding", 0, lambda one: one * 1.05),  # a temperature
        ("engine", 5, lambda one: one * 1.25),
        ("engine", 3, lambda one: one - 0.05),
        ("engine", 0, lambda one: 0.0),
        ("rounding", 4, lambda one: of_engine(random.Random(one), one)),  # dropout
    ],
    ids=lambda one: one[:2],
)
def test_a_fault_stands_out_of_noise(kind: str, step: int, change: Any, tmp_path: Path) -> None:
    found = diff(tmp_path, long_run(), long_run(at_step(step, kind, change)))
    assert [(one["column"], one["step"]) for one in found["partings"]] == [("log_probs_new", step)]
    assert found["agreed_until"] == (step - 1 if step else None)


def test_an_engine_that_samples_at_a_temperature_from_step_30_on(tmp_path: Path) -> None:
    """A real trainer's log-probs against its engine's, of which the noise is known."""
    with gzip.open(SAMPLES / "temperature.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    names = ("per_token_logps", "sampling_per_token_logps")
    runs = [
        write(tmp_path / name, ({"step": one["step"], "log_probs": one[name]} for one in lines))
        for name in names
    ]
    found = answer("diff", *runs)
    assert (found["agreed_until"], found["noise"][0]["kind"]) == (29, "engine")
    assert found["partings"][0]["step"] == 30


def test_long_settings_fit_the_screen(tmp_path: Path) -> None:
    """On a pipe of 80 columns as well; --full has all of them."""
    other = {"beta": 0.25, "epsilon_low": 0.1, "epsilon_high": 0.3, "loss_type": "dapo"}
    later = [one | {"hyperparameters": other} for one in RUN]
    runs = [write_run(tmp_path / name, some) for name, some in (("a", RUN), ("b", later))]
    lines = run("diff", *runs).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("hyperparameters") and line.count("…") == 2 for line in lines)


# ---- steps and records that one run lacks -------------------------------------------------------


def test_two_runs_in_one_folder_are_no_run(tmp_path: Path) -> None:
    for name in ("a", "b/x", "b/y"):
        write_run(tmp_path / name, RUN)
    result = run("diff", tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, "both have step 0, so these are 2 runs" in result.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "npz"])
def test_binary_files_are_compared_whichever_of_them_are_equal(kind: str, tmp_path: Path) -> None:
    """Of files with the same bytes one is decoded; a number of another file still differs."""
    numbers = np.random.default_rng(1).uniform(-2.0, -0.1, (4, 600, 3, 2))
    runs = {"same": numbers, "other": numbers.copy()}
    runs["other"][2, 599, 1, 1] -= 0.5
    for run_name, every in {"one": numbers, **runs}.items():
        for step, rows in enumerate(every):
            write_table(tmp_path / run_name / f"step_{step}.{kind}", rows, [step] * len(rows))
    found = {
        name: answer("diff", tmp_path / "one", tmp_path / name, "--tolerance=0") for name in runs
    }
    (first,) = [one for one in found["other"]["partings"] if one["column"] == "log_probs_new"]
    assert found["same"]["ok"]
    assert found["same"]["tokens"] == (24 if kind == "npz" else numbers.size)
    assert found["other"]["agreed_until"] == 1
    assert [first[name] for name in ("step", "response", "token")] == [2, 1, 1]
    assert first["difference"] == pytest.approx(0.5)


@pytest.mark.parametrize("kept", [0, 15_000, 30_000])
def test_rows_are_compared_however_many_are_kept(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Raw.__module__], "_AHEAD", kept)
    numbers = np.random.default_rng(2).uniform(-2.0, -0.1, (2_000, 3, 2))
    steps = np.repeat(np.arange(5), [100, 1_000, 300, 300, 300])
    for name in "ab":
        write_table(tmp_path / f"{name}.parquet", numbers, steps.tolist())
    found = answer("diff", tmp_path / "a.parquet", tmp_path / "b.parquet", "--tolerance=0")
    assert found["ok"]
    assert (found["steps"], found["tokens"]) == (5, numbers.size)


def write_table(path: Path, rows: Any, steps: list[int]) -> None:
    """Writes records [M, R, T] and their steps; an npz file has the last of them alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, log_probs_new=rows[-1], rewards=np.arange(3.0), step=steps[-1])
        return
    pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = pa.table({"log_probs_new": rows.tolist(), "step": steps})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3_000)
        return
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=300)


def test_responses_are_paired_by_their_tokens_where_no_column_is_in_both(tmp_path: Path) -> None:
    """Log-probs of one run, ratios of the other."""
    tokens, rewards = [["a", "b"], ["c"]], [1.0, 0.0]
    first = {"tokens": tokens, "rewards": rewards, "log_probs_new": [[-1.0, -2.0], [-3.0]]}
    second = {"tokens": tokens[::-1], "rewards": rewards[::-1], "ratios": [[1.1], [1.0, 2.0]]}
    paths = [
        write(tmp_path / f"{at}.jsonl", [one | {"step": step} for step in range(3)])
        for at, one in enumerate((first, second))
    ]
    found = run("diff", *paths)
    assert found.exit_code == 0
    assert "the runs are identical: 3 steps" in found.stdout
