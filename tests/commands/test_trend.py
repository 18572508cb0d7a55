"""``grpo trend``: the numbers of a step, beside their definitions in plain Python."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each, in_blocks, some
from trended import metrics, steps, trend, write

COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
NO_KL = ("-v", "grpo", "--beta", "0")


def record(draw: random.Random, step: int, number: int, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"id": f"{step}-{number}", "step": step, "rewards": []}
    made |= {name: [] for name in COLUMNS}
    for _ in range(4):
        old = [-draw.expovariate(1.0) - 0.01 for _ in range(draw.randint(1, 12))]
        made["log_probs_old"].append(old)
        for name in ("log_probs_new", "log_probs_ref", "log_probs_rollout"):
            made[name].append([min(one + draw.gauss(0.0, 0.2), -1e-3) for one in old])
        made["rewards"].append(float(draw.random() < 0.5))
    return made | more


def make(folder: Path, count: int = 3, records: int = 5, **more: Any) -> list[dict[str, Any]]:
    """Writes a file a step."""
    draw, everything = random.Random(7), []
    for step in range(count):
        lines = [record(draw, step, number, **more) for number in range(records)]
        write(folder / f"{step}.jsonl", lines)
        everything += lines
    return everything


def flat(records: list[dict[str, Any]], name: str) -> list[float]:
    return [one for each in records for row in each[name] for one in row]


def test_the_numbers_of_a_step_are_those_of_their_definitions(tmp_path: Path) -> None:
    records = [one for one in make(tmp_path) if one["step"] == 1]
    found = steps(tmp_path, *NO_KL)[1]
    new, old, ref, engine = (flat(records, name) for name in COLUMNS)
    d = [a - b for a, b in zip(old, engine, strict=True)]
    k = [b - a for a, b in zip(new, ref, strict=True)]
    ratio = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
    rewards = [one for each in records for one in each["rewards"]]
    lengths = [len(row) for each in records for row in each["log_probs_new"]]
    weight = [math.exp(one) for one in d]
    advantages = [
        reward - statistics.mean(one["rewards"])
        for one in records
        for reward, row in zip(one["rewards"], one["log_probs_new"], strict=True)
        for _ in row
    ]
    pairs = [*zip(ratio, advantages, strict=True)]
    expected = {
        "reward_mean": statistics.mean(rewards),
        "reward_std": statistics.stdev(rewards),
        "reward_group_std": statistics.mean(statistics.stdev(one["rewards"]) for one in records),
        "groups_equal": statistics.mean(len(set(one["rewards"])) == 1 for one in records),
        "groups_all_0": statistics.mean(not any(one["rewards"]) for one in records),
        "groups_all_1": statistics.mean(all(one["rewards"]) for one in records),
        "pass_at_1": statistics.mean(rewards),
        "pass_at_k": statistics.mean(any(one["rewards"]) for one in records),
        "length_mean": statistics.mean(lengths),
        "length_p95": sorted(lengths)[math.ceil(0.95 * len(lengths)) - 1],
        "at_longest": statistics.mean(one == max(lengths) for one in lengths),
        "nll": -statistics.mean(new),
        "kl_k1": -statistics.mean(k),
        "kl_k3": statistics.mean(math.exp(one) - one - 1 for one in k),
        "ratio_mean": statistics.mean(ratio),
        "clip_high": statistics.mean(r > 1.2 and a > 0 for r, a in pairs),
        "clip_low": statistics.mean(r < 0.8 and a < 0 for r, a in pairs),
        "ess": sum(ratio) ** 2 / len(ratio) / sum(one * one for one in ratio),
        "mismatch.k1": -statistics.mean(d),
        "mismatch.k3": statistics.mean(math.exp(one) - one - 1 for one in d),
        "mismatch.chi2": statistics.mean(one * one for one in weight) - 1,
        "mismatch.ess": sum(weight) ** 2 / len(weight) / sum(one * one for one in weight),
        "mismatch.mean_abs": statistics.mean(map(abs, d)),
        "mismatch.mult": statistics.mean(math.exp(abs(one)) for one in d),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert found["mismatch.p999"] == pytest.approx(max(map(abs, d)), rel=4e-3)
    assert math.log(found["ratio_p999"]) == pytest.approx(math.log(max(ratio)), rel=4e-3)
    assert type(found["length_p95"]) is int


def test_divergences_of_nearly_equal_columns_keep_their_digits(tmp_path: Path) -> None:
    """Of differences d near 1e-7, by series: e^d − 1 − d = d²/2 + d³/6, e^2d − 1 = 2d + 2d²."""
    old = [-1.0, -2.0, -0.5, -3.0]
    off = [3e-7, -1e-7, 2e-7, -5e-8]
    columns = {"log_probs_new": [old], "log_probs_old": [old]}
    for name in ("log_probs_rollout", "log_probs_ref"):
        columns[name] = [[one - d for one, d in zip(old, off, strict=True)]]
    found = metrics(write(tmp_path / "a.jsonl", [{"step": 1, "rewards": [1.0], **columns}]))
    d = [one - other for one, other in zip(old, columns["log_probs_rollout"][0], strict=True)]
    k3 = statistics.mean(one * one / 2 + one**3 / 6 for one in d)
    assert found["mismatch.k3"] == pytest.approx(k3, rel=1e-8, abs=0.0)
    ref = statistics.mean(one * one / 2 - one**3 / 6 for one in d)
    assert found["kl_k3"] == pytest.approx(ref, rel=1e-8, abs=0.0)
    chi2 = statistics.mean(2 * one + 2 * one * one for one in d)
    assert found["mismatch.chi2"] == pytest.approx(chi2, rel=1e-12, abs=0.0)


@each(
    "flags",
    [
        NO_KL, ("-v", "grpo"), (*NO_KL, "--batch", "record"), ("-v", "gspo"), ("-v", "reinforce++"),
        ("-v", "verl/vanilla", "-p", "entropy_coef=0.1"),
    ],
)  # fmt: skip
def test_totals_are_those_of_eval(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Of one file, of a step in several, and where records differ in their settings."""
    made = make(tmp_path / "a", records=9)
    for at, one in enumerate(made):
        given = {"beta": 0.02 * (at // 3), "epsilon_low": 0.05 * (at // 3)}  # within each file
        settings = {"hyperparameters": given} if at // 3 else {}
        made[at] = one | {"entropies": one["log_probs_new"], "step": 0} | settings
        made[at]["entropies"] = [[-x for x in row] for row in one["log_probs_new"]]
    for rank in range(3):
        write(tmp_path / "b" / f"rank{rank}.jsonl", made[rank::3])
    found = metrics(tmp_path / "b", *flags)
    total = answer("eval", tmp_path / "b", *flags)["total"]
    for name in ("objective", "loss", "gradient_norm", "ratio_mean", "kl"):
        assert found[name] == total[name] or (name, found[name]) == ("kl", None), name
    assert found["clip_low"] == total["clip_fraction_low"]
    assert found["clip_high"] == total["clip_fraction_high"]
    assert found["clip_fraction"] == pytest.approx(total["clip_fraction"])


@pytest.mark.more
@pytest.mark.parametrize("variant", some([NO_KL, ("-v", "reinforce++")], 1))
def test_the_same_bits_for_any_cut_and_any_number_of_workers(
    tmp_path: Path, variant: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of steps, of ranks, or one; read whole or in blocks, by one process or two."""

    def numbers(path: Path, *flags: str) -> list[dict[str, Any]]:
        """But for the file and its lines."""
        found = steps(path, *variant, *flags)
        for step in found:
            step.pop("file")
            for place in step["worst"].values():
                del place["source"], place["line"]
        return found

    made = make(tmp_path / "a", records=9)
    write(tmp_path / "b.jsonl", made)
    for rank in range(3):
        write(tmp_path / "c" / f"rank_{rank}.jsonl", made[rank::3])
    once = numbers(tmp_path / "a")
    ranks = numbers(tmp_path / "c")
    assert [one | {"worst": {}} for one in ranks] == [one | {"worst": {}} for one in once]
    values = [[{n: p["value"] for n, p in one["worst"].items()} for one in run_of]
              for run_of in (ranks, once)]  # fmt: skip
    assert values[0] == values[1]
    for size in (1 << 22, 2000, 3000):
        in_blocks(monkeypatch, size)
        assert numbers(tmp_path / "a", "--jobs", "2") == once
        assert numbers(tmp_path / "b.jsonl", "--jobs", "1") == once
        assert numbers(tmp_path / "c", "--jobs", "1") == ranks


def test_sums_are_exact_however_many_numbers_they_have(tmp_path: Path) -> None:
    """Rounded once, as ``math.fsum`` does it; wherever what cancels is added."""
    draw = random.Random(4)
    whole = [draw.gauss(0, 1) * 10.0 ** draw.randint(-9, 9) for _ in range(900)]
    rewards = [*whole, 1e16, 1.0, *(-one for one in whole), -1e16]
    for parts in (1, 3, 40):
        some = [rewards[at::parts] for at in range(parts)]
        records = [{"step": 0, "log_probs": [[-1.0]] * len(one), "rewards": one} for one in some]
        found = metrics(write(tmp_path / "a.jsonl", records))
        assert found["reward_mean"] == 1.0 / len(rewards)
    log_probs = [[-(10.0 ** -draw.randint(0, 9))] for _ in range(999)]
    row = {"step": 0, "log_probs": log_probs, "rewards": [0.0] * 999}
    row["log_probs_rollout"] = [[-2.0]] * 999
    found = metrics(write(tmp_path / "a.jsonl", [row] * 3))
    assert found["nll"] == -math.fsum(one * 3 for (one,) in log_probs) / 2997
    assert found["mismatch.k1"] == -math.fsum([one + 2.0 for (one,) in log_probs] * 3) / 2997


@pytest.mark.more
@pytest.mark.parametrize("count", [40, 700, 5000, 30_000])
def test_quantiles_are_those_of_all_tokens(count: int, tmp_path: Path) -> None:
    """Right to 0.2 %, of few and of many; of ratios below 1; wherever they are cut."""
    draw = np.random.default_rng(count)
    place = math.ceil(0.999 * count) - 1
    for sizes in (draw.exponential(size=count), np.arange(count) % 7 + 1.0):
        old = -0.5 + 0.4 * sizes / sizes.max()  # ratios of e^−0.5 to e^−0.9
        engine = old - 0.01 * sizes
        for parts in (1, 6):
            pairs = zip(np.array_split(old, parts), np.array_split(engine, parts), strict=True)
            records = [
                {"step": 0, "log_probs_new": [[-1.0] * len(a)], "log_probs_old": [a.tolist()],
                 "log_probs_rollout": [b.tolist()], "rewards": [1.0]}
                for a, b in pairs
            ]  # fmt: skip
            found = metrics(write(tmp_path / "a.jsonl", records))
            ratio, mismatch = np.sort(-1.0 - old)[place], np.sort(old - engine)[place]
            assert math.log(found["ratio_p999"]) == pytest.approx(ratio, rel=4e-3)
            assert found["mismatch.p999"] == pytest.approx(mismatch, rel=4e-3)
            assert found["mismatch.p999"] <= max(old - engine)
            if count < 1000:  # the quantile is the largest
                assert found["mismatch.p999"] == max(old - engine)
                assert math.log(found["ratio_p999"]) == pytest.approx(ratio, rel=1e-14)


@pytest.mark.more
def test_small_steps_that_are_evaluated_together_keep_what_is_theirs(tmp_path: Path) -> None:
    """Each step has the numbers that it has alone; a record that is left out takes none along."""
    make(tmp_path / "all", count=12, records=2)
    batch = ("-v", "reinforce++")  # whose statistics are those of a batch, here of one step
    assert steps(tmp_path / "all", *batch)[1] == metrics(tmp_path / "all" / "1.jsonl", *batch)
    lines = [(tmp_path / "all" / f"{step}.jsonl").read_text() for step in range(12)]

    def numbers(*words: object) -> list[dict[str, Any]]:
        left = ("worst", "file")
        return [{n: v for n, v in one.items() if n not in left} for one in steps(*words)]

    path = tmp_path / "one.jsonl"
    alone = [one for text in lines for one in numbers(write(path, [text[:-1]]), *NO_KL)]
    assert numbers(tmp_path / "all", *NO_KL) == alone
    bad = {"step": 4, "log_probs_new": [[0.5]], "rewards": [1.0]}
    wrong = json.dumps(json.loads(lines[7].splitlines()[0]) | {"log_probs_old": [[-1.0]]})
    lines[4] = f"{json.dumps(bad)}\n{lines[4]}"
    lines[7] = f"{lines[7]}{wrong}\n{{\n"
    path.write_text("".join(lines))
    result = run("trend", path, *NO_KL, "--on-error", "skip", "--format", "jsonl")
    assert result.exit_code == 3
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [{n: v for n, v in one.items() if n != "file"} for one in rows] == alone
    assert [f"one.jsonl:{line}:" in result.stderr for line in (9, 18, 19)] == [True] * 3
    result = run("trend", path, *NO_KL)
    assert result.exit_code == 3
    assert "one.jsonl:9: log_probs_new" in result.stderr


@pytest.mark.more
def test_what_a_run_of_rewards_alone_prints_works(tmp_path: Path) -> None:
    """No ``grpo check`` of files that have no log-probs, whose error is one line for all."""
    draw = random.Random(2)
    for step in range(40):
        share = 0.5 if step < 24 else 0.05
        write(tmp_path / f"{step}.jsonl", (
            {"gts": "1", "input": f"p{at // 8}", "output": "r"}
            | {"score": float(draw.random() < share)}
            for at in range(64)
        ))  # fmt: skip
    found = trend(tmp_path)
    assert found["verdict"].startswith("step 24: the reward fell; ")
    assert {one["command"] for one in found["events"]} == {None}
    shown = run("trend", tmp_path, "--at", "24")
    assert (shown.exit_code, "reward_mean" in shown.stdout) == (0, True)
    result = run("check", tmp_path)
    error, same, skipped = result.stderr.splitlines()
    assert (result.exit_code, "no log-probs" in error) == (3, True)
    assert "the same error in 2,559 more records, 40 files in all" in same
    assert skipped == "grpo: skipped 2,560 records"
