"""``grpo trend``: the numbers of a step, beside their definitions in plain Python."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import answer, run
from files import each, in_blocks, some
from trended import PLAIN, metrics, notes, steps, trend, write

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


def test_where_a_step_is_worst_by_hand(tmp_path: Path) -> None:
    """Of the first step: the first of equal ones, and the record with the largest gradient."""
    rows: dict[str, list[list[list[float]]]] = {
        "log_probs_new": [[[-1.0, -2.0], [-0.5]], [[-3.5, -1.0], [-0.2, -0.4, -0.1]]],
        "log_probs_old": [[[-1.1, -2.0], [-0.5]], [[-3.5, -1.0], [-0.5, -0.4, -0.1]]],
        "log_probs_ref": [[[-1.0, -2.0], [-2.5]], [[-3.0, -1.0], [-0.2, -0.4, -0.1]]],
        "log_probs_rollout": [[[-1.1, -1.5], [-0.5]], [[-3.5, -1.25], [-0.5, -0.4, -0.1]]],
    }
    made = [
        {"id": name, "step": 0, "rewards": rewards} | {key: each[at] for key, each in rows.items()}
        for at, (name, rewards) in enumerate((("x", [1.0, 0.0]), ("y", [0.0, 0.5])))
    ]
    first, second = steps(write(tmp_path / "a.jsonl", [*made, made[1] | {"step": 1}]), *NO_KL)
    where = ("line", "record", "response", "token")
    assert {name: tuple(one[n] for n in where) for name, one in first["worst"].items()} == {
        "length": (2, "y", 1, None), "nll": (2, "y", 0, 0), "ratio": (2, "y", 1, 0),
        "kl": (1, "x", 1, 0), "mismatch": (1, "x", 0, 1), "gradient": (1, "x", 0, None),
    }  # fmt: skip
    values = {name: one["value"] for name, one in first["worst"].items()}
    assert values.pop("gradient") > 0.0
    d = -2.0  # log π_ref − log π_θ
    assert values == pytest.approx(
        {"length": 3.0, "nll": 3.5, "ratio": 0.3, "kl": math.exp(d) - d - 1, "mismatch": 0.5}
    )
    assert {one["line"] for one in second["worst"].values()} == {3}
    assert second["worst"]["kl"]["token"] == 0


def test_of_equal_places_the_first_is_the_worst(tmp_path: Path) -> None:
    """In a record, among records, and among files."""
    row = {"step": 0, "rewards": [1.0, 0.0]} | {name: [[-1.0] * 3] * 2 for name in COLUMNS}
    row |= {"log_probs_ref": [[-1.5] * 3] * 2, "log_probs_rollout": [[-1.5] * 3] * 2}
    row |= {"log_probs_old": [[-1.1] * 3] * 2}
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", [row, row])
    found = metrics(tmp_path, "--one-run", *NO_KL)["worst"]
    assert len(found) == 6
    for place in found.values():
        where = [place[n] for n in ("line", "record", "response", "token")]
        assert (place["source"], where[:3]) == (str(tmp_path / "a.jsonl"), [1, 0, 0])
        assert where[3] in (0, None)


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


@each("size", [1 << 22, 1, 300])
def test_a_record_that_is_left_out_makes_no_step_and_says_nothing(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is wrong with it or with its neighbours. That line 5 overflows is a finding."""
    in_blocks(monkeypatch, size)
    good = {"step": 2, "rewards": [0.0, 1.0], "truncated": [True, False]}
    good |= {name: [[-0.1], [-0.1]] for name in COLUMNS}
    short = {"step": 1, "rewards": [0.0], "log_probs_new": [[-0.1], [-0.1]]}
    ended = good | {"truncated": [True, True], "log_probs_old": [[-0.1]]}
    far = good | {"log_probs_old": [[-2000.0], [-0.1]]}
    path = write(tmp_path / "a.jsonl", [short, ended, good, short, far, "{"])
    result = run("trend", path, *NO_KL, "--on-error", "skip", "--json", "--max-errors", "0")
    (found,) = json.loads(result.stdout)["steps"]
    assert (found["step"], found["truncated"]) == (2, 0.5)
    errors = [json.loads(line)["error"] for line in result.stderr.splitlines() if line[0] == "{"]
    assert [error["line"] for error in errors] == [1, 2, 4, 6]
    stopped = run("trend", write(tmp_path / "a.jsonl", [good, short, good, far]), *NO_KL)
    assert "a.jsonl:2: " in stopped.stderr


def test_steps_have_the_same_columns_each_in_the_order_of_the_input(tmp_path: Path) -> None:
    """None for the reward functions that only others have."""
    functions = {3: ("c", "a"), 7: ("b", "a"), 1: ()}
    rows = [
        PLAIN | {"step": number} | {f"rewards/{name}": [0.5] for name in functions[number]}
        for number in (7, 3, 1)
    ]
    found = steps(write(tmp_path / "a.jsonl", rows))
    assert [one["step"] for one in found] == [1, 3, 7]
    each = [f"rewards/{name}/mean" for name in "bac"]
    assert all([*one][-4:] == [*each, "worst"] for one in found)
    values = [[one[name] for name in each] for one in found]
    assert values == [[None] * 3, [None, 0.5, 0.5], [0.5, 0.5, None]]


# ---- responses and groups -----------------------------------------------------------------------


def of_groups(path: Path, *groups: tuple[list[float], list[int], str | None]) -> dict[str, Any]:
    """The numbers of a step of such groups: rewards, lengths and name of each, a record each."""
    rows = (
        {"step": 0, "log_probs": [[-1.0] * n for n in lengths], "rewards": rewards}
        | ({} if name is None else {"group_ids": [name] * len(rewards)})
        for rewards, lengths, name in groups
    )
    return metrics(write(path, rows))


def test_what_responses_say_together_by_hand(tmp_path: Path) -> None:
    """Groups 1, 0 | 0, 0, 0 | 1, 1 | 1; lengths 4, 2 | 9, 9, 1 | 3, 5 | 7."""
    found = of_groups(
        tmp_path / "a.jsonl",
        ([1.0, 0.0], [4, 2], "a"), ([0.0] * 3, [9, 9, 1], "b"), ([1.0] * 2, [3, 5], "c"),
        ([1.0], [7], "d"),
    )  # fmt: skip
    assert (found["reward_mean"], found["length_mean"]) == (0.5, 5.0)
    assert found["reward_std"] == pytest.approx(math.sqrt(2 / 7))
    assert found["reward_group_std"] == pytest.approx(math.sqrt(0.5) / 3)
    names = ("groups_equal", "groups_all_0", "groups_all_1", "pass_at_1", "pass_at_k", "at_longest")
    assert [found[n] for n in names] == [2 / 3, 1 / 3, 1 / 3, (0.5 + 0 + 1 + 1) / 4, 3 / 4, 2 / 8]
    assert found["length_p95"] == 9  # of 1 2 3 4 5 7 9 9
    # rewards vary in the first group only: (0.5 · 1 · 2) / √(0.5 · (2 + 42 + 2/3 + 2))
    assert found["reward_length_corr"] == pytest.approx(1.0 / math.sqrt(0.5 * (2 + 128 / 3 + 2)))


@each(
    ("advantages", "value"),
    [
        ([[3.0, -1.0], [-2.0, 2.0]], 1.0), ([[-1.0, 1.0], [1.0, -1.0]], -1.0),
        ([[[1.0], [-1.0]], [[-1.0], [1.0]]], 1.0),  # by token
        # (0.5 · 1 · 2 + 0) / √((0.5 + 0.5) · 2): the other group's are equal
        ([[1.0, -1.0], [5.0, 5.0]], math.sqrt(0.5)),
    ],
)  # fmt: skip
def test_recorded_advantages_follow_the_rewards(advantages, value, tmp_path: Path) -> None:
    rows = [
        {"step": 0, "log_probs": [[-1.0], [-2.0]], "rewards": rewards, "advantages": given}
        for rewards, given in zip(([1.0, 0.0], [0.0, 1.0]), advantages, strict=True)
    ]
    found = metrics(write(tmp_path / "a.jsonl", rows))
    assert found["reward_advantage_corr"] == pytest.approx(value)
    for row in rows:
        del row["advantages"]
    assert metrics(write(tmp_path / "a.jsonl", rows)).get("reward_advantage_corr") is None


@each(
    ("low", "high", "shares"),
    [
        (0.0, 1.0, [0.25, 0.5, 0.5, 0.0]), (-1.0, 1.0, [0.25, 0.5, 0.5, 0.0]),
        (1.0, 1.0, [1.0, 1.0, 0.0, 1.0]), (-1.0, -1.0, [0.0, 0.0, 1.0, 0.0]),
        (0.0, 2.0, [None] * 4), (0.5, 1.0, [None] * 4),
    ],
)  # fmt: skip
def test_rewards_that_say_right_or_wrong_are_0_and_1_or_minus_1_and_1(
    low: float, high: float, shares: list[float | None], tmp_path: Path
) -> None:
    found = of_groups(tmp_path / "a.jsonl", ([low, high], [1, 1], None), ([low, low], [1, 1], None))
    names = ("pass_at_1", "pass_at_k", "groups_all_0", "groups_all_1")
    assert [found[name] for name in names] == shares


@each(
    ("labels", "std"),
    [("abab", 0.0), ("aabb", 0.5**0.5), ([None, "a", "a", "b"], None), ("abcd", None)],
)
def test_single_rows_are_groups_by_their_names(labels: Any, std: Any, tmp_path: Path) -> None:
    """Rows of one response each, where every one has a name: rewards 0, 1, 0, 1."""
    rows = [([float(at % 2)], [1], label) for at, label in enumerate(labels)]
    found = of_groups(tmp_path / "a.jsonl", *rows)
    assert found["reward_group_std"] == (None if std is None else pytest.approx(std))
    assert (found["pass_at_k"] is None, found["pass_at_1"]) == (std is None, 0.5)


def test_groups_that_a_trainer_tore_are_joined_by_name(tmp_path: Path) -> None:
    draw = random.Random(0)
    first, second = record(draw, 0, 0), record(draw, 0, 1)
    first |= {"group_ids": [0, 0, 0, 1], "rewards": [0.0, 0.0, 0.0, 1.0]}
    second |= {"group_ids": [1, 1, 1, 0], "rewards": [0.0, 0.0, 0.0, 0.0]}
    found = metrics(write(tmp_path / "a.jsonl", [first, second]))
    assert (found["groups_all_0"], found["pass_at_k"]) == (0.5, 0.5)
    assert found["reward_group_std"] == pytest.approx(0.25)


def test_a_step_of_which_some_records_have_rewards_alone(tmp_path: Path) -> None:
    """All rewards count; what is made of tokens is not known of all responses."""
    write(tmp_path / "step_1.rank0.jsonl", [PLAIN | {"step": 1}])
    score = {"input": "p", "output": "r", "gts": "1", "score": 0.25, "step": 1}
    write(tmp_path / "step_1.rank1.jsonl", [score])
    found = metrics(tmp_path)
    assert found["reward_mean"] == (1.0 + 0.0 + 0.25) / 3
    assert (found["length_mean"], found["at_longest"]) == (None, None)


# ---- numbers at the edge ------------------------------------------------------------------------


@each(("old", "engine"), [(-500.0, -0.1), (-0.1, -500.0)])
def test_numbers_that_vanish_have_no_effective_sample_size(
    tmp_path: Path, old: float, engine: float
) -> None:
    """The squares of weights below 1e-162 are 0 in a double; those above 1e154 are infinite."""
    row = {"step": 0, "log_probs_new": [[old], [old]], "log_probs_old": [[old], [old]]}
    row |= {"log_probs_rollout": [[engine], [engine]], "rewards": [1.0, 0.0]}
    found = metrics(write(tmp_path / "a.jsonl", [row]))
    assert found["mismatch.ess"] is None
    assert found["mismatch.k1"] == pytest.approx(engine - old)


def test_what_is_0_has_no_sign(tmp_path: Path) -> None:
    """−0.0 is printed as such, and is no loss."""
    row = {"step": 0, "log_probs": [[-0.0], [0.0]], "rewards": [1.0, 1.0]}
    path = write(tmp_path / "a.jsonl", [row | {"log_probs_rollout": [[0.0], [-0.0]]}])
    found = metrics(path)
    for name in ("loss", "nll", "mismatch.k1", "objective"):
        assert (found[name], math.copysign(1.0, found[name])) == (0.0, 1.0), name


def test_the_kl_of_the_objective(tmp_path: Path) -> None:
    """The mean of two responses' means; whatever β is; there is none without a reference."""
    row = {"step": 0, "log_probs": [[-1.0, -2.0], [-1.5]], "rewards": [1.0, 0.0]}
    row["log_probs_ref"] = [[-1.5, -2.5], [-1.75]]
    path = write(tmp_path / "a.jsonl", [row])
    k3 = [math.exp(-d) - 1 + d for d in (0.5, 0.5, 0.25)]
    for flags in (("-v", "grpo"), NO_KL):
        found = metrics(path, *flags)
        assert found["kl"] == pytest.approx(((k3[0] + k3[1]) / 2 + k3[2]) / 2)
        assert found["kl_k3"] == pytest.approx(sum(k3) / 3)
    found = metrics(write(path, [row | {"log_probs_ref": None}]), *NO_KL)
    assert (found["kl"], found["kl_k3"]) == (None, None)


def test_without_a_column_of_the_objective_the_rest_is_there(tmp_path: Path) -> None:
    make(tmp_path, log_probs_ref=None)
    path = tmp_path / "x" / "a.jsonl"
    ratios = {"step": 1, "ratios": [[1.1, 0.9], [1.0]], "rewards": [1.0, 0.0]}
    flags = ("-v", "grpo", "--beta", "0.04")
    step, alone = steps(tmp_path / "0.jsonl", *flags)[0], metrics(write(path, [ratios]), *flags)
    assert (step["loss"], step["kl_k3"], alone["loss"]) == (None, None, None)
    assert None not in (step["reward_mean"], step["mismatch.k3"])
    assert (alone["reward_mean"], alone["length_mean"]) == (0.5, 1.5)
    said = notes(tmp_path / "0.jsonl", *flags)
    assert any("log_probs_ref: missing; the kl stage (k3) needs" in one for one in said)


# ---- what records say besides numbers by token --------------------------------------------------


def with_fields(path: Path, **fields: Any) -> dict[str, Any]:
    """The numbers of step 8, of two responses of three and two tokens, with more fields."""
    row = {"log_probs": [[-1.0] * 3, [-2.0] * 2], "rewards": [0.0, 1.0], "step": 8}
    return metrics(write(path, [row | fields]))


@each(
    ("fields", "share"),
    [
        ({}, None),
        ({"truncated": [True, False, 1, 0, None]}, 2 / 5),
        ({"is_truncated": True}, 1.0), ({"finish_reason": "length"}, 1.0),
        ({"finish_reasons": ["max_tokens", "truncated", "stop", 2]}, 2 / 4),
        ({"truncated": None, "finish_reason": "stop"}, 0.0),
        ({"is_truncated": [1], "finish_reasons": ["stop", "stop"]}, 1.0),
    ],
)  # fmt: skip
def test_which_responses_were_cut(fields: dict[str, Any], share: float, tmp_path: Path) -> None:
    assert with_fields(tmp_path / "a.jsonl", **fields)["truncated"] == share


MASK = [[1, 0, 1], [1, 1]]


@each(
    ("fields", "lags"),
    [
        ({"weight_version": 5}, [3]),
        ({"weight_versions": [5, 7, None, True, 6.0]}, [3, 1]),  # whole numbers alone
        ({"policy_version": 8, "meta": {"policy_version": 1}}, [0]),
        ({"meta": {"head_version": 9}}, [-1]), ({"head_version": 4, "weight_version": 2}, [6]),
        ({"weight_versions": [[7, 3, 8], [6, 7]]}, [1, 5, 0, 2, 1]),
        ({"weight_versions": [[7, 9, 8], [6, 7]], "mask": MASK}, [1, 0, 2, 1]),
        ({"weight_versions": [[7, 8], [6, 7]], "mask": MASK}, [1, 0, 2, 1]),  # of turns
        ({"weight_versions": [[[7, 9, 8]], [[6, 7]]], "mask": MASK}, [1, 0, 2, 1]),
        ({"weight_versions": [[-1, 9, 8], [None, 7]], "mask": MASK}, [0, 1]),  # −1: not sampled
        ({"weight_versions": [7, 9], "mask": MASK}, [1, -1]),
        ({"weight_versions": [7, [6, 7]], "mask": MASK}, [1, 2, 1]),
        ({"weight_versions": [7, 9, 8], "log_probs": [[-1.0] * 3], "rewards": [1.0],
          "mask": MASK[:1]}, [1, 0]),
    ],
)  # fmt: skip
def test_how_old_the_policy_is(fields: dict[str, Any], lags: list[int], tmp_path: Path) -> None:
    """The mean over what has a version: the record, responses, or the tokens that count."""
    assert with_fields(tmp_path / "a.jsonl", **fields)["staleness"] == sum(lags) / len(lags)


@each("kind", ["parquet", "rows"])
def test_versions_by_token_of_tables_and_of_rows(kind: str, tmp_path: Path) -> None:
    row: dict[str, Any] = {"log_probs": [[-1.0] * 3, [-2.0] * 2], "rewards": [0.0, 1.0], "step": 8}
    row |= {"weight_versions": [[7, 3, 8], [6, 7]], "mask": MASK}
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row, row]), path)
    else:  # of one response each
        write(path, [{n: v if n == "step" else v[at] for n, v in row.items()} for at in (0, 1)])
    assert metrics(path)["staleness"] == (1 + 0 + 2 + 1) / 4


def test_rows_that_are_put_together_keep_their_endings_and_versions(tmp_path: Path) -> None:
    def row(group: str, ended: str, version: int) -> dict[str, Any]:
        said = {"uid": group, "finish_reason": ended, "weight_version": version}
        return said | {"step": 2, "log_probs_new": [-1.0, -2.0], "rewards": 1.0}

    rows = [row("a", "stop", 2), row("a", "length", 0), row("b", "stop", 1), row("b", "stop", 1)]
    path = write(tmp_path / "run.jsonl", rows)
    for flags in ([], ["--group-by", "uid"], ["--group-size", "2"]):
        (step,) = answer("trend", path, *flags)["steps"]
        assert (step["truncated"], step["staleness"]) == (0.25, 1.0), flags


def test_repetition_needs_four_tokens(tmp_path: Path) -> None:
    """Of each response, the share of 4-grams that were there before; of the tokens that count."""
    path = tmp_path / "a.jsonl"

    def repetition(*ids: list[Any], name: str = "token_ids", **more: Any) -> float | None:
        rows = ({"step": 1, "log_probs": [[-1.0] * len(one)], "rewards": [1.0], name: [one]}
                for one in ids)  # fmt: skip
        return metrics(write(path, [one | more for one in rows]))["repetition"]

    assert repetition([1, 2, 3], [1, 2, 3, 4], [5, 5, 5, 5, 5], []) == (0.0 + 1 / 2) / 2
    assert repetition([1, 2, 3]) is None
    assert repetition(["a"] * 6, ["b"] * 6, name="tokens") == pytest.approx(2 / 3)
    words, pads = [*"abcdef"], ["<pad>"] * 6
    for tokens, mask in ((words + pads, [1] * 6 + [0] * 6), (pads + words, [0] * 6 + [1] * 6)):
        assert repetition(tokens, name="tokens", mask=[mask]) == 0.0


def test_a_dump_without_log_probs_has_rewards(tmp_path: Path) -> None:
    """verl's rollout_data_dir/{step}.jsonl: texts and scores, prompts for groups."""
    for step, scores in enumerate([(0.0, 1.0, 0.0, 0.0), (1.0, 1.0, 0.0, 1.0)]):
        rows = [{"gts": "1", "output": "r", "score": score} for score in scores]
        for at, row in enumerate(rows):
            row["input"] = f"p{at // 2}"
        write(tmp_path / f"{step}.jsonl", rows)
    first, second = steps(tmp_path)
    said = "only rewards (and lengths, if given) are computed: "
    assert any(said in one for one in notes(tmp_path))
    assert first["reward_mean"] == 0.25
    assert (first["groups_all_0"], first["pass_at_k"]) == (0.5, 0.5)
    assert (second["groups_all_1"], second["length_mean"]) == (0.5, None)
    areal = {"task_id": 3, "sample_idx": 0, "seqlen": 9, "prompt_len": 4, "tail_version": 6}
    found = metrics(write(tmp_path / "x", [areal | {"completion": "c", "reward": 1.0}]))
    assert (found["step"], found["length_mean"]) == (6, 5.0)


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


def test_several_rewards_count_as_the_objective_weighs_them(tmp_path: Path) -> None:
    """r = 2·right − format: 2·1 − 0.5, 0 (null counts nothing), 2·1 − 0.5, 0 − 1."""
    row: dict[str, Any] = {"step": 0, "log_probs": [[-1.0, -0.5], [-0.7], [-0.2], [-0.3]]}
    row["rewards"] = {"right": [1.0, 0.0, 1.0, 0.0], "format": [0.5, None, 0.5, 1.0]}
    weights = {"hyperparameters": {"reward_weights": [2.0, -1.0]}}
    given = {"advantages": [1.0, 0.0, 1.0, 0.0]}
    path = tmp_path / "a.jsonl"
    for more in ({}, given):  # of given advantages the weights are known from the record alone
        found = metrics(write(path, [row | weights | more]))
        assert found["reward_mean"] == (1.5 + 0.0 + 1.5 - 1.0) / 4
        assert found["rewards/right/mean"] == 0.5
        assert found["rewards/format/mean"] == pytest.approx(2 / 3)
    write(path, [row])
    assert metrics(path)["reward_mean"] == 1.0
    assert metrics(path, "-p", "reward_weights=1,0")["reward_mean"] == 0.5
    write(path, [row | {"hyperparameters": {"reward_weights": [2.0]}} | given])
    said = run("trend", path, "-v", "dr").stderr
    assert "a.jsonl:1: " in said
    assert "one weight per reward function, 2" in said


def test_reward_functions_that_trls_hook_wrote_besides_their_sum(tmp_path: Path) -> None:
    """What is no number counts nothing; those of the sum's parts are added to them."""
    more = {"rewards/right": [1.0, None, 2, "3"], "rewards/y": 0.5, "x": [7.0]}
    fields = ({"step": 0}, {"step": 1} | more, {"step": 1, "rewards/right": [0.0]},
              {"step": 2, "rewards": {"right": [1.0, 0.0]}, "rewards/right": [4.0]})  # fmt: skip
    rows = [PLAIN | one for one in fields]
    found = steps(write(tmp_path / "a.jsonl", rows))
    assert [one["rewards/right/mean"] for one in found] == [None, 1.0, 5 / 3]
    assert "rewards/y/mean" not in found[0]


def test_every_column_is_in_every_format(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    names = [n for n in metrics(write(path, [PLAIN | {"step": 3}])) if n not in ("step", "worst")]
    row = json.loads(run("trend", path, "-v", "dr", "--format", "jsonl").stdout)
    assert [*row] == ["step", *names]
    head, line = run("trend", path, "-v", "dr", "--format", "csv").stdout.splitlines()
    assert {*head.split(",")} < {*row}
    assert line.startswith(f"3,{path},0.5,")
    table = run("trend", path, "-v", "dr", "--fields", "mismatch.k3,nll").stdout.split()
    assert table[table.index("step") :][:3] == ["step", "mismatch.k3", "nll"]
    assert trend(path)["signatures"][0].startswith("dr|")


def test_what_a_narrow_table_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reward functions first; last of all what a finding is of, the loss and the rewards."""
    row = record(random.Random(9), 0, 0)
    rows = [[0.5] * len(one) for one in row["log_probs_new"]]
    row |= {"entropies": rows, "finish_reasons": ["stop"] * 4, "weight_versions": [0] * 4,
            "tokens": [["a"] * len(one) for one in rows]}  # fmt: skip
    row["rewards"] = {"a": row["rewards"], "b": [0.0, 1.0, 1.0, 0.0]}
    path = write(tmp_path / "a.jsonl", [row])
    monkeypatch.setenv("COLUMNS", "18")
    flags = ("--full", *NO_KL, "-p", "reward_weights=1,0")
    shown = " ".join(run("trend", path, *flags).stdout.split())
    assert shown.partition("hidden: ")[2].partition(" (--fields")[0].split(", ") == [
        "rewards/b/mean", "rewards/a/mean", "repetition", "staleness", "ratio_mean",
        "ess", "mismatch.k1", "ratio_p999", "clip_low", "reward_std", "pass_at_k",
        "reward_group_std", "reward_length_corr", "groups_equal", "truncated", "mismatch.mean_abs",
        "mismatch.p999", "mismatch.k3", "gradient_norm", "length_mean", "nll", "entropy",
        "clip_high", "kl_k3", "mismatch.mult", "loss",
    ]  # fmt: skip
