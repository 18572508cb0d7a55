"""Questions about a run: ``grpo trend --at``, ``--by``; the truth is in how the run is made."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each
from trended import SAMPLES, series, write

import grpo_cli
from grpo_cli.commands.trend.questions.against import Difference
from grpo_cli.commands.trend.questions.noise import mean_of_neighbours, walked_mean
from grpo_cli.commands.trend.questions.view import with_error

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
    assert found["check"] == answer("check", path, "--where", f"step=={SINCE}")
    assert found["worst"] == steps[SINCE]["worst"]
    assert {one["record"] for one in found["groups"] if "mismatch" in one["worst_in"]} == {
        f"{SINCE}-{BROKEN_RANK}"
    }


@pytest.mark.more
def test_the_size_of_a_metric_can_be_computed_from_what_is_printed(folder: Path) -> None:
    """By its scale, from the steps before; the first metrics are those of the verdict."""
    path, words = folder / "run.jsonl", ("-v", "dr")
    whole, found = (answer("trend", path, *words, *more) for more in ((), ("--at", SINCE)))
    assert (found["verdict"], found["last_good_step"]) == (whole["verdict"], SINCE - 1)
    assert f"(medians: {found['metrics'][0]['name']} " in whole["events"][0]["summary"]
    scales = {
        "x": np.array,
        "log x": np.log,
        "−log(1 − x)": lambda values: -np.log(1.0 - values),
        "arcsin √x": lambda values: np.arcsin(np.sqrt(values)),
    }
    seen = set()
    for one in found["metrics"]:
        before = [each[one["name"]] for each in whole["steps"][:SINCE]]
        if one["size"] is None or one["size"] != one["size"] or None in before:
            continue
        scale = scales[one["scale"]]
        others, at = scale(np.array(before)), scale(np.array(one["at"]))
        usual = np.median(others)
        spread = 1.4826 * np.median(np.abs(others - usual))
        assert one["spread"] >= spread * (1 - 1e-9)
        assert one["size"] == pytest.approx((at - usual) / one["spread"], rel=1e-6), one
        if one["spread"] == pytest.approx(spread):
            seen.add(one["scale"])
    assert {"x", "log x", "−log(1 − x)"} <= seen
    result = run("trend", path, *words, "--at", SINCE)
    assert f"the run: step {SINCE}: " in result.stdout


@pytest.mark.more
def test_a_difference_since_its_onset_has_an_interval(folder: Path) -> None:
    other = folder / "healthy" / "seed_5"
    found = answer("trend", folder / "run.jsonl", "--against", other, "-v", "dr")["metrics"]
    (one,) = [one for one in found if one["name"] == "mismatch.k3"]
    assert one["since"] == SINCE
    assert one["since_low"] < one["since_then"] < one["since_high"] < one["difference"] < 0.0
    assert {row["since_then"] for row in found if row["since"] is None} <= {None}


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
    path = log(tmp_path / "a.json", 1)
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


def test_a_part_whose_share_of_the_responses_grew(tmp_path: Path) -> None:
    """Of two parts the worse has three times the records from step 20 on, and falls a little."""
    draw = random.Random(8)

    def rows(move: float) -> Iterator[dict[str, Any]]:
        for step in range(40):
            after = step >= 20
            for part in ["good", *["bad"] * (3 if after else 1)]:
                level = 0.8 if part == "good" else 0.2 - (move if after else 0.0)
                rewards = [level + draw.gauss(0, 0.01) for _ in range(4)]
                yield {"step": step, "part": part, "log_probs": [[-1.0]] * 4, "rewards": rewards}

    for move, verdict in (
        (0.0, "no single part changed, but the share of part bad"),
        (0.1, "only"),
    ):
        path = write(tmp_path / f"{move}.jsonl", rows(move))
        found = answer("trend", path, "-v", "dr", "--by", "part")
        changes = [one for one in found["changes"] if one["metric"] == "reward_mean"]
        assert sum(one["share"] for one in changes) == pytest.approx(1.0, abs=0.02)
        (said,) = [one for one in found["verdicts"] if one.startswith("reward_mean")]
        assert verdict in said


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
def test_runs_that_differ_beyond_noise(folder: Path) -> None:
    sides = folder / "healthy", "--against", folder / "broken"
    found = answer("trend", *sides, "-v", "dr")
    assert found["runs"] == [3, 3]
    differ = {one["name"] for one in found["metrics"] if one["differs_at_end"]}
    assert {"mismatch.k3", "mismatch.mean_abs"} <= differ
    assert all(name.startswith("mismatch.") for name in differ)
    one = next(one for one in found["metrics"] if one["name"] == "mismatch.k3")
    runs = [
        answer("trend", folder / f"{kind}/seed_{seed}", "-v", "dr")["steps"]
        for kind in ("healthy", "broken")
        for seed in (5, 6, 7)
    ]
    means = [statistics.fmean(step["mismatch.k3"] for step in run) for run in runs]
    assert one["first"] == pytest.approx(statistics.fmean(means[:3]))
    assert one["difference"] == pytest.approx(statistics.fmean(means[3:]) - one["first"])
    spread = math.sqrt(sum(statistics.variance(part) / 3 for part in (means[:3], means[3:])))
    assert 2.7 * spread < one["high"] - one["difference"] < 4.4 * spread  # t of 2 to 4


@pytest.mark.more
def test_runs_that_differ_by_their_seed(folder: Path) -> None:
    for first, second in (("run.jsonl", "other.jsonl"), ("healthy/seed_5", "healthy/seed_6")):
        found = answer("trend", folder / first, "--against", folder / second, "-v", "dr")
        assert not [one for one in found["metrics"] if one["differs"] or one["differs_at_end"]]
        assert len(found["notes"]) == 1


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
    assert "the runs are equal before step 10" in found["notes"][1]
    assert not [one for one in found["metrics"] if one["differs"]]


@pytest.mark.more
def test_a_few_steps_are_too_few_to_decide(tmp_path: Path) -> None:
    """The largest differences are named, by deviations over all steps, not by their size."""
    draw = random.Random(12)
    steps = [{"step": at, "loss": draw.gauss(0, 1), "kl": 1 + 0.01 * draw.random(),
              "reward": draw.gauss(0, 100), "entropy": 2.0} for at in range(60)]  # fmt: skip
    first, second = write(tmp_path / "a.jsonl", steps), tmp_path / "b.jsonl"
    for parts, largest in ((48, ["kl", "loss"]), (30, [])):
        moved = {"loss": -1.0, "kl": 0.02}
        later = [
            {
                name: one[name] + moved[name] * draw.gauss(1, 1.5) if name in moved else one[name]
                for name in one
            }
            for one in steps[parts:]
        ]
        words = first, "--against", write(second, [*steps[:parts], *later])
        assert answer("trend", *words)["largest"] == largest
        said = " ".join(run("trend", *words).stdout.split())
        few = "12 steps (48 to 59)" if largest else "30 steps (30 to 59)"
        assert few in said
        assert ("too few to judge the metrics (30 are needed)" in said) == bool(largest)
        assert ("of the first run: kl, loss" in said) == bool(largest)
        assert "at the end" not in said
    write(second, [one | {"loss": one["loss"] + 1e-9} for one in steps])
    said = run("trend", *words).stdout
    assert "at the end" in said


def test_few_steps_decide_what_is_clear(tmp_path: Path) -> None:
    """Lengths that grow away from the other run's, and never are as short, differ; noise is not."""
    draw = np.random.default_rng(3)
    first, second = (
        [
            {"step": at, "length_mean": length + draw.random(), "loss": draw.normal()}
            for at, length in enumerate(lengths)
        ]
        for lengths in ([10.0] * 12, [12.0 + 2 * at for at in range(12)])
    )
    words = write(tmp_path / "a.jsonl", first), "--against", write(tmp_path / "b.jsonl", second)
    found = answer("trend", *words)
    differs = {one["name"]: one["differs"] for one in found["metrics"]}
    assert differs == {"length_mean": True, "loss": False}
    assert found["largest"] == ["loss"]
    said = " ".join(run("trend", *words).stdout.split())
    assert "too few to judge the unmarked metrics (30 are needed). Largest so far, " in said
    losses = ({"loss": one["loss"]} for one in first)
    write(tmp_path / "b.jsonl", [one | loss for one, loss in zip(second, losses, strict=True)])
    said = run("trend", *words).stdout
    assert "equal: loss" in said
    assert "too few to judge" not in said, "nothing is left to decide"


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """Neither a metric that differs by it, nor the largest difference so far."""
    draw = np.random.default_rng(3)
    first = [{"step": at, "loss": draw.normal(), "ess": 1.0, "kl": at + 1.0} for at in range(12)]
    second = [
        {"step": one["step"], "loss": one["loss"] * (1 + 4e-16), "ess": 1 - 2e-16, "kl": 9.0}
        for one in first
    ]
    words = write(tmp_path / "a.jsonl", first), "--against", write(tmp_path / "b.jsonl", second)
    found = answer("trend", *words)
    assert not any(one["differs"] for one in found["metrics"])
    assert found["largest"] == ["kl"]
    assert "equal: loss, ess" in run("trend", *words).stdout


def test_an_interval_that_misses_0_is_marked(tmp_path: Path) -> None:
    """It does not remain after the correction, and must not read as no difference."""
    found = [
        Difference("reward_mean", 0.5, 0.7, 0.2, low, 0.3, 0.2, low, 0.3, differs, differs)
        for low, differs in ((0.1, False), (-0.1, False), (0.1, True))
    ]
    assert [one.misses_0 and not one.is_marked for one in found] == [True, False, False]


def test_a_metric_that_ends_before_runs_part(tmp_path: Path) -> None:
    """Of `kl` five steps are left from there on, too few: it is left out."""
    draw = np.random.default_rng(7)
    first, second = (tmp_path / name for name in ("a.jsonl", "b.jsonl"))
    steps = [{"step": at, "loss": float(draw.normal())} for at in range(40)]
    steps = [one | ({"kl": float(draw.random())} if one["step"] < 25 else {}) for one in steps]
    first.write_text("".join(json.dumps(one) + "\n" for one in steps))
    later = [
        one | ({"loss": one["loss"] + draw.normal()} if one["step"] >= 20 else {}) for one in steps
    ]
    second.write_text("".join(json.dumps(one) + "\n" for one in later))
    found = answer("trend", first, "--against", second)
    assert found["steps"] == [20, 39, 20]
    assert [one["name"] for one in found["metrics"]] == ["loss"]


def test_a_walk_is_no_difference() -> None:
    """Random walks, which two seeds are, against noise around a difference that is there."""
    draw = np.random.default_rng(31)
    walks = [np.cumsum(draw.normal(size=120)) + draw.normal(size=120) for _ in range(100)]
    assert sum(walked_mean(one, 120).is_beyond(0.95) for one in walks) <= 12
    apart = [0.8 + draw.normal(size=120) for _ in range(100)]
    assert sum(walked_mean(one, 120).is_beyond(0.95) for one in apart) >= 90
    assert sum(mean_of_neighbours(one).is_beyond(0.95) for one in walks) >= 25


def log(path: Path, seed: int, reward: float = 0.5, spike: float = 1.0) -> Path:
    draw = random.Random(seed)
    rows = [
        {"step": at, "reward": reward + draw.gauss(0, 0.05), "grad_norm": 1 + draw.random()}
        for at in range(60)
    ]
    rows[31]["grad_norm"] *= spike
    path.write_text(json.dumps({"log_history": rows}), encoding="utf-8")
    return path


def test_what_a_log_alone_answers(tmp_path: Path) -> None:
    first, second = log(tmp_path / "a.json", 1, spike=50), log(tmp_path / "b.json", 2, reward=0.6)
    found = answer("trend", first, "--at", "31")
    assert (found["metrics"][0]["name"], found["check"], found["groups"]) == ("grad_norm", None, [])
    assert found["metrics"][0]["size"] > 10
    found = answer("trend", first, "--against", second)["metrics"]
    assert [one["name"] for one in found if one["differs"]] == ["reward", "grad_norm"]
    result = run("trend", first, "--by", "rank")
    assert (result.exit_code, "--by needs records" in result.stderr) == (2, True)


def falling(path: Path, seed: int, fallen: float) -> Path:
    draw = random.Random(seed)
    rows = [
        {"step": at, "reward": draw.gauss(0.45 if at < 30 else fallen, 0.07)} for at in range(60)
    ]
    path.write_text(json.dumps({"log_history": rows}), encoding="utf-8")
    return path


@pytest.mark.more
@each("seed", range(1, 5))
def test_what_trend_finds_in_one_run_differs_from_another(seed: int, tmp_path: Path) -> None:
    """From the step of the change on, in a row whose name has the mark at any width."""
    one, other = falling(tmp_path / "a", seed, 0.27), falling(tmp_path / "b", 9, 0.45)
    assert answer("trend", one)["events"]
    (row,) = answer("trend", one, "--against", other)["metrics"]
    assert row["differs"]
    assert 28 <= row["since"] <= 32
    printed = run("trend", one, "--against", other).stdout
    assert [line for line in printed.splitlines() if line.startswith("≠ reward ")]


def test_the_last_good_step(folder: Path) -> None:
    found = answer("trend", folder / "run.jsonl", "-v", "dr")
    assert found["last_good_step"] == SINCE - 1
    healthy = answer("trend", folder / "healthy" / "seed_5", "-v", "dr")
    assert "last_good_step" not in healthy


@each(
    ("since", "factor", "drifts", "differs", "cell"),
    [
        (0, 1.4, False, True, "× 1.4"), (40, 1.4, False, True, "+0.185 ±0.3"),
        (0, 1.01, True, True, "+0.185 ±0.3 (drifts)"), (None, 1.4, False, False, "+0.185 ±0.3"),
    ],
)  # fmt: skip
def test_what_differs_where_an_interval_contains_0(
    since: int | None, factor: float | None, drifts: bool, differs: bool, cell: str
) -> None:
    values = (1.0, 1.185, 0.185, -0.115, 0.485)
    row = Difference(
        *("kl_k3", *values, *values[2:], differs, differs, since, factor, factor),
        drifts=drifts,
        drifts_at_end=drifts,
    )
    assert [with_error(row, 0, at_end=end) for end in (False, True)] == [cell, cell]


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


def test_a_standard_deviation_near_its_largest_value_does_not_stand_out(tmp_path: Path) -> None:
    """22 of 32 rewards are 1 where 14 to 18 were: as likely as one in twenty."""
    rights = [16, 15, 17, 16, 14, 16, 18, 15, 16, 17] * 2 + [22]
    rows = [
        {"step": at, "log_probs": [[-0.5, -0.25]] * 32, "advantages": [0.5] * 32,
         "rewards": [1.0] * right + [0.0] * (32 - right)}
        for at, right in enumerate(rights)
    ]  # fmt: skip
    found = answer("trend", write(tmp_path / "a.jsonl", rows), "-v", "dr", "--at", "20")
    (metric,) = (one for one in found["metrics"] if one["name"] == "reward_std")
    assert -1.0 < metric["size"] < 0.0
    assert metric["spread"] == pytest.approx(statistics.median(
        statistics.stdev([1.0] * one + [0.0] * (32 - one)) for one in rights[:-1]
    ) / math.sqrt(64))  # fmt: skip


def test_a_log_is_compared_with_records(folder: Path, tmp_path: Path) -> None:
    """Its series are those that records have under other names; what is left out is a note."""
    path = tmp_path / "log.csv"
    lines = [f"{at},{0.5 + at % 3 / 50},{2 if at < SINCE else 40}\n" for at in range(STEPS)]
    path.write_text(f"step,reward,grad_norm\n{''.join(lines)}", encoding="utf-8")
    result = run("trend", folder / "run.jsonl", "-v", "dr", "--against", path, "--json")
    (metric,) = json.loads(result.stdout)["metrics"]
    assert metric["name"] == "reward_mean"
    assert "compared: reward with reward_mean; records do not have grad_norm" in result.stderr


@pytest.mark.more
def test_a_comparison_says_which_metrics_differ_from_which_step_on(folder: Path) -> None:
    """In one line, however narrow the screen: the first line of a pipe is all of it."""
    paths = (folder / "healthy" / "seed_5" / "run.jsonl", folder / "run.jsonl")
    shown = run("trend", paths[0], "-v", "dr", "--against", paths[1]).stdout
    first = shown.splitlines()[0]
    assert f"mismatch.k3 from step {SINCE}" in first
    assert f"Compared: {STEPS} steps" in shown


def test_a_possible_cause_is_what_check_finds(tmp_path: Path) -> None:
    """Where it finds nothing in the worst record, its command is not offered."""
    rewards = {"rewards": [1.0] * 20 + [0.2] * 20}
    shown = run("trend", series(tmp_path / "a.jsonl", rewards), "-v", "dr").stdout
    assert "fell at step 20" in shown
    assert "possible cause" not in shown
    assert "possible cause" in run("trend", SAMPLES / "temperature.jsonl.gz").stdout


def test_the_part_that_falls_steadily(tmp_path: Path) -> None:
    """Of two environments, the log-probs of one go to 0: its first and last sixth differ."""
    draw = random.Random(1)
    rows = []
    for step, env in ((step, env) for step in range(60) for env in ("a", "b")):
        size = 0.3 ** (step / 20) if env == "b" else 0.05
        lines = [[-size * draw.uniform(0.8, 1.2) for _ in range(20)] for _ in range(2)]
        rows.append({"step": step, "env": env, "log_probs": lines, "rewards": [1.0, 0.0]})
    path = write(tmp_path / "a.jsonl", rows)
    (found,) = [one for one in answer("trend", path)["findings"] if one["metric"] == "nll"]
    assert found["kind"] == "trend"
    (said,) = [
        one for one in answer("trend", path, "--by", "env")["verdicts"] if one.startswith("nll")
    ]
    assert said.startswith("nll from step 50 on: only env=b changed (1 of 2)")


def engine_noise(path: Path, sizes: Sequence[float], broken: Sequence[int] = range(6)) -> Path:
    """A run whose engine differs by noise of a size, at a step each, in these ranks of 6."""
    draw = np.random.default_rng(3)

    def row(step: int, rank: int) -> dict[str, Any]:
        old = -draw.exponential(1.0, (6, 12)) - 0.3
        size = sizes[step] if rank in broken else sizes[0]
        rollout = np.minimum(old + size * draw.normal(size=old.shape), -1e-4)
        columns = {"log_probs_old": old, "log_probs_new": old, "log_probs_rollout": rollout}
        where = {"step": step, "rank": rank, "rewards": draw.integers(0, 2, 6).tolist()}
        return where | {name: one.tolist() for name, one in columns.items()}

    return write(path, [row(step, rank) for step in range(len(sizes)) for rank in range(6)])


def test_a_mismatch_that_is_usual_elsewhere_is_too_large_where_the_run_had_less(
    tmp_path: Path,
) -> None:
    path = engine_noise(tmp_path / "a.jsonl", [0.003] * 24 + [0.03] * 16)
    shown = run("trend", path, "-v", "dr", "--at", 24).stdout
    assert "too large for this run, whose mean |·| was 0.002" in " ".join(shown.split())
    before, after = (
        answer("trend", path, "-v", "dr", "--at", step)["check"]["mismatch"] for step in (23, 24)
    )
    assert (before["normal"], after["normal"]) == (True, False)


def test_a_factor_is_the_quotient_of_the_means_that_are_shown(tmp_path: Path) -> None:
    growing = [0.003] * 12 + [0.003 * 1.3**at for at in range(1, 17)]
    first = engine_noise(tmp_path / "a.jsonl", [0.003] * 28)
    second = engine_noise(tmp_path / "b.jsonl", growing)
    found = answer("trend", first, "-v", "dr", "--against", second)["metrics"]
    row = next(one for one in found if one["name"] == "mismatch.k3")
    assert row["factor"] == pytest.approx(row["second"] / row["first"], rel=1e-12)


@each("broken", [[0, 1, 2, 3, 4], [5]])
def test_parts_that_changed_are_few_or_all_but_few(broken: list[int], tmp_path: Path) -> None:
    path = engine_noise(tmp_path / "a.jsonl", [0.003] * 24 + [0.03] * 16, broken)
    shown = run("trend", path, "-v", "dr", "--by", "rank").stdout
    assert ("every rank except 5 changed (5 of 6)" in shown) == (len(broken) == 5)
    assert ("only rank=5 changed (1 of 6)" in shown) == (len(broken) == 1)
    (event,) = answer("trend", path, "-v", "dr")["events"]
    assert ("part" in event) == (len(broken) == 1)
