"""``grpo trend``: the steps of a run, and when something began."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import shlex
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.source import ReadingOptions
from grpo_cli.commands.trend.findings import command, findings, read_condition
from grpo_cli.commands.trend.metrics import METRICS, StepValues
from grpo_cli.commands.trend.onsets import Series, mann_kendall, onset, onsets, theil_sen
from grpo_cli.commands.trend.options import flags_of
from grpo_cli.commands.trend.origins import Clash, Origins, StepSource, changes, of_name, two_runs
from grpo_cli.commands.trend.origins import run_of as name_of_run
from grpo_cli.commands.trend.responses import Responses
from grpo_cli.commands.trend.run import Run, steps
from grpo_cli.commands.trend.step import Flags, Place, Step
from grpo_cli.commands.trend.sums import NamedSums, Rows, StepSums
from grpo_cli.commands.trend.tails import Tail
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Raw
from grpo_cli.records.open.folders import files
from grpo_cli.variants.plan import Plan, plan

COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")


def no_kl() -> Plan:
    return plan("grpo", hyperparameters={"beta": 0.0})


def record(draw: random.Random, step: int, number: int, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"id": f"{step}-{number}", "step": step, "rewards": []}
    made |= {name: [] for name in COLUMNS}
    for _ in range(4):
        old = [-draw.expovariate(1.0) - 0.01 for _ in range(draw.randint(1, 12))]
        made["log_probs_old"].append(old)
        for name in ("log_probs_new", "log_probs_ref", "log_probs_rollout"):
            made[name].append([min(one + draw.gauss(0.0, 0.05), -1e-3) for one in old])
        made["rewards"].append(float(draw.random() < 0.5))
    return made | more


def write(folder: Path, count: int = 3, records: int = 5, **more: Any) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    draw, everything = random.Random(7), []
    for step in range(count):
        lines = [record(draw, step, number, **more) for number in range(records)]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        everything += lines
    return everything


def read(folder: Path, **how: Any) -> list[Step]:
    return steps(Reader(files([str(folder)]), **how), no_kl())


def flat(records: list[dict[str, Any]], name: str) -> list[float]:
    return [one for each in records for row in each[name] for one in row]


def test_the_numbers_of_a_step_are_those_of_their_definitions(tmp_path: Path) -> None:
    """The definitions, spelled in plain Python over lists."""
    records = [one for one in write(tmp_path) if one["step"] == 1]
    metrics = read(tmp_path)[1].metrics
    new, old, ref, engine = (flat(records, name) for name in COLUMNS)
    d = [a - b for a, b in zip(old, engine, strict=True)]
    k = [b - a for a, b in zip(new, ref, strict=True)]
    ratio = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
    rewards = [one for each in records for one in each["rewards"]]
    lengths = [len(row) for each in records for row in each["log_probs_new"]]
    weight = [math.exp(one) for one in d]
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
        "clip_high": statistics.mean(
            r > 1.2 and a > 0 for r, a in zip(ratio, spread(records), strict=True)
        ),
        "ess": sum(ratio) ** 2 / len(ratio) / sum(one * one for one in ratio),
        "mismatch.k1": -statistics.mean(d),
        "mismatch.k3": statistics.mean(math.exp(one) - one - 1 for one in d),
        "mismatch.chi2": statistics.mean(one * one for one in weight) - 1,
        "mismatch.ess": sum(weight) ** 2 / len(weight) / sum(one * one for one in weight),
        "mismatch.mean_abs": statistics.mean(map(abs, d)),
        "mismatch.mult": statistics.mean(math.exp(abs(one)) for one in d),
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert metrics["mismatch.p999"] == pytest.approx(max(map(abs, d)), rel=4e-3)
    assert math.log(metrics["ratio_p999"] or 0) == pytest.approx(math.log(max(ratio)), rel=4e-3)


def test_shares_of_clipped_tokens_by_hand(tmp_path: Path) -> None:
    """Beyond 0.2 on the side that binds: two of A > 0, and one of A < 0, of eight tokens."""
    moves = [[0.3, 0.18, 0.2, -0.5], [-0.3, -0.2, 0.5, 0.0]]
    old = [[-2.0 - move for move in row] for row in moves]
    row = {"step": 0, "log_probs_new": [[-2.0] * 4] * 2, "log_probs_old": old}
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"rewards": [1.0, 0.0]}))
    (found,) = read(tmp_path)
    assert (found.metrics["clip_high"], found.metrics["clip_low"]) == (2 / 8, 1 / 8)


def spread(records: list[dict[str, Any]]) -> list[float]:
    """The sign of each token's advantage: a reward less the mean of its group."""
    found: list[float] = []
    for one in records:
        mean = statistics.mean(one["rewards"])
        for reward, row in zip(one["rewards"], one["log_probs_new"], strict=True):
            found += [reward - mean] * len(row)
    return found


def test_deciles_of_the_position(tmp_path: Path) -> None:
    rows = {name: [[-1.0] * 20, [-1.0] * 3] for name in COLUMNS}
    rows["log_probs_rollout"] = [[-1.0 - at for at in range(20)], [-1.0, -1.0, -2.0]]
    text = json.dumps({"step": 4, "rewards": [0.0, 1.0], **rows})
    (tmp_path / "a.jsonl").write_text(text)
    (found,) = read(tmp_path)
    # Twenty tokens give two to each tenth; of three, the last begins at 2/3 and is in the seventh.
    assert found.metrics["mismatch.decile_1"] == pytest.approx((0 + 1 + 0) / 3)
    assert found.metrics["mismatch.decile_7"] == pytest.approx((12 + 13 + 1) / 3)
    assert found.metrics["mismatch.decile_10"] == pytest.approx((18 + 19) / 2)
    worst = found.worst["mismatch"]
    assert (worst.line, worst.record, worst.response, worst.token) == (1, 0, 0, 19)


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
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (*made, made[1] | {"step": 1})))
    first, second = read(tmp_path)
    places = {
        name: (one.line, one.record, one.response, one.token) for name, one in first.worst.items()
    }
    assert places == {
        "length": (2, "y", 1, None), "nll": (2, "y", 0, 0), "ratio": (2, "y", 1, 0),
        "kl": (1, "x", 1, 0), "mismatch": (1, "x", 0, 1), "gradient": (1, "x", 0, None),
    }  # fmt: skip
    values = {name: one.value for name, one in first.worst.items()}
    assert values.pop("gradient") > 0.0
    d = -2.0  # log π_ref − log π_θ
    assert values == pytest.approx(
        {"length": 3.0, "nll": 3.5, "ratio": 0.3, "kl": math.exp(d) - d - 1, "mismatch": 0.5}
    )
    assert {one.line for one in second.worst.values()} == {3}
    assert second.worst["kl"].token == 0


def test_totals_are_those_of_eval(tmp_path: Path) -> None:
    from grpo_cli.engine import Evaluation

    write(tmp_path)
    (step, *_) = read(tmp_path)
    evaluation = Evaluation(Reader([str(tmp_path / "0.jsonl")]), no_kl(), encode=None)
    list(evaluation)
    for name in ("objective", "loss", "gradient_norm", "ratio_mean"):
        assert step.metrics[name] == evaluation.total[name]


@pytest.mark.parametrize("variant", ["grpo", "reinforce++"])
def test_the_same_bits_for_any_cut_and_any_number_of_workers(tmp_path: Path, variant: str) -> None:
    write(tmp_path, records=9)
    given = plan(variant, hyperparameters={"beta": 0.0}) if variant == "grpo" else plan(variant)
    places = files([str(tmp_path)])
    once = steps(Reader(places), given)
    assert steps(Reader(places, block_bytes=2000), given) == once
    assert steps(Reader(places, block_bytes=3000, jobs=2), given) == once
    (tmp_path / "all").write_bytes(b"".join(Path(one).read_bytes() for one in places))
    together = steps(Reader([str(tmp_path / "all")]), given)
    assert [one.metrics for one in together] == [one.metrics for one in once]
    assert all(one.shares_file for one in together)


def test_small_steps_that_are_evaluated_together_keep_what_is_theirs(tmp_path: Path) -> None:
    """Each step has the numbers that it has alone; a record that is left out takes none along."""
    write(tmp_path / "all", count=12, records=2)
    lines = [Path(one).read_text() for one in files([str(tmp_path / "all")])]
    alone = []
    for number, text in enumerate(lines):
        (tmp_path / "one.jsonl").write_text(text)
        alone += steps(Reader([str(tmp_path / "one.jsonl")]), no_kl())
        assert alone[-1].number == number
    assert [one.metrics for one in read(tmp_path / "all")] == [one.metrics for one in alone]

    bad = {"step": 4, "log_probs_new": [[0.5]], "rewards": [1.0]}
    wrong = json.dumps(json.loads(lines[7].splitlines()[0]) | {"log_probs_old": [[-1.0]]})
    lines[4] = f"{json.dumps(bad)}\n{lines[4]}"
    short = [[-0.1], [-0.1]]  # of what follows a ratio is no number, which only evaluation sees
    far = {"id": "far", "step": 5, "rewards": [0.0, 1.0]} | dict.fromkeys(COLUMNS, short)
    lines[5] = json.dumps(far | {"log_probs_old": [[-2000.0], [-0.1]]}) + "\n" + lines[5]
    lines[7] = f"{lines[7]}{wrong}\n{{\n"
    (tmp_path / "one.jsonl").write_text("".join(lines))
    run = Run(Reader([str(tmp_path / "one.jsonl")], skip=True), no_kl())
    assert [one.metrics for one in run.read()] == [one.metrics for one in alone]
    assert [error.line for error in run.skipped] == [9, 12, 19, 20]
    with pytest.raises(InputError, match=r"one\.jsonl:9: log_probs_new"):
        steps(Reader([str(tmp_path / "one.jsonl")]), no_kl())


def test_of_records_that_cannot_be_evaluated_the_first_is_told(tmp_path: Path) -> None:
    """Where they are evaluated together, too."""
    short = {"step": 0, "rewards": [0.0, 1.0]} | {name: [[-0.1], [-0.1]] for name in COLUMNS}
    far = short | {"log_probs_old": [[-2000.0], [-0.1]]}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (short, far, short, far)))
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        steps(Reader([str(path)]), no_kl())
    run = Run(Reader([str(path)], skip=True), no_kl())
    run.read()
    assert [error.line for error in run.skipped] == [2, 4]


def test_a_record_that_is_left_out_makes_no_step_and_says_nothing(tmp_path: Path) -> None:
    """Whatever stands beside it: another error, or a record that says how it ended."""
    good = {"rewards": [0.0, 1.0], "truncated": [True, False]}
    good |= {name: [[-0.1], [-0.1]] for name in COLUMNS}
    short = {"step": 1, "rewards": [0.0], "log_probs_new": [[-0.1], [-0.1]]}
    ended = good | {"step": 2, "truncated": [True, True], "log_probs_old": [[-0.1]]}
    lines = [*map(json.dumps, (short, ended, good | {"step": 2}, short)), "{"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    for block_bytes in (1 << 22, 1, 300):
        run = Run(Reader([str(path)], skip=True, block_bytes=block_bytes), no_kl())
        (found,) = run.read()
        assert (found.number, found.metrics["truncated"]) == (2, 0.5)
        assert [error.line for error in run.skipped] == [1, 2, 4, 5]


def values_of(step: Step) -> dict[str, tuple[Any, ...]]:
    """Where a step is worst, but for the file."""
    return {
        name: (place.record, place.response, place.token, place.value)
        for name, place in step.worst.items()
    }


def test_steps_of_several_ranks_are_the_same_however_their_files_are_cut(tmp_path: Path) -> None:
    """Each rank's file has all steps."""
    draw = random.Random(1)
    lines = [[json.dumps(record(draw, step, rank)) for rank in range(3)] for step in range(40)]
    for rank in range(3):
        text = "".join(f"{each[rank]}\n" for each in lines)
        (tmp_path / f"rank_{rank}.jsonl").write_text(text)
    (tmp_path / "all").write_text("".join(f"{line}\n" for each in lines for line in each))
    together = steps(Reader([str(tmp_path / "all")]), no_kl())
    (tmp_path / "all").unlink()
    apart = read(tmp_path)
    assert [values_of(one) for one in apart] == [values_of(one) for one in together]
    assert [one.metrics for one in apart] == [one.metrics for one in together]
    assert {one.file for one in apart} == {str(tmp_path / "rank_0.jsonl")}


def test_sums_by_name_are_exact_whether_they_wait_or_not() -> None:
    """Rounded once, as ``math.fsum`` does it; some parts were taken apart, some wait."""
    draw = np.random.default_rng(4)
    whole: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    merged = NamedSums()
    for names, count in ((("a", "b"), 1500), (("a", "b"), 900), (("b", "c"), 7), (("c",), 1)):
        rows = draw.standard_normal((len(names), count)) * 10.0 ** draw.integers(-9, 9, count)
        part = NamedSums()
        part.add_rows(names, rows)
        merged.merge(pickle.loads(pickle.dumps(part)))
        for name, row in zip(names, rows, strict=True):
            whole[name] += row.tolist()
    merged.add("a", np.array([0.1, 0.2]))
    whole["a"] += [0.1, 0.2]
    expected = {name: math.fsum(values) for name, values in whole.items()}
    assert merged.values() == expected
    assert pickle.loads(pickle.dumps(merged)).values() == expected
    far = NamedSums()
    far.add_rows(("far", "lost"), np.array([[1e308, 1e308, -1e308], [math.inf, 1.0, -math.inf]]))
    with np.errstate(invalid="ignore"):
        values = far.values()
    assert values["far"] == 1e308  # what it goes through on the way is too large for a double
    assert math.isnan(values["lost"])


def test_steps_have_the_same_columns_each_in_the_order_of_the_first_step(tmp_path: Path) -> None:
    """Whatever the order of the file; None for the reward functions that only others have."""
    functions = {3: ("c", "a"), 7: ("b", "a"), 1: ()}
    lines = []
    for number in (7, 3, 1):
        one = PLAIN | {"step": number} | {f"rewards/{name}": [0.5] for name in functions[number]}
        lines.append(json.dumps(one))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    found = steps(Reader([str(tmp_path / "a.jsonl")]), plan("dr"))
    assert [one.number for one in found] == [1, 3, 7]
    each = [f"rewards/{name}/mean" for name in "cab"]
    assert all([*one.metrics] == [*METRICS, *each] for one in found)
    values = [[one.metrics[name] for name in each] for one in found]
    assert values == [[None] * 3, [0.5, 0.5, None], [None, 0.5, 0.5]]
    assert type(found[0].metrics["length_p95"]) is int
    assert all(one.shares_file for one in found)


def test_a_misspelt_sum_or_count_is_an_error() -> None:
    """A sum that nothing adds to must not read 0."""
    step = StepValues(StepSums("a"))
    assert step.mean("record_kl", "record_kl") is None
    with pytest.raises(KeyError):
        step.mean("record_kl", "recrod_kl")
    with pytest.raises(KeyError):
        step.sums["mismatch_dd"]
    with pytest.raises(KeyError):
        StepSums("a").add_values("record_lk", np.ones(1))


def test_a_step_is_a_batch_of_its_own(tmp_path: Path) -> None:
    """Batch statistics of one step do not look at another."""
    write(tmp_path)
    whole = steps(Reader(files([str(tmp_path)])), plan("reinforce++"))
    alone = steps(Reader([str(tmp_path / "1.jsonl")]), plan("reinforce++"))
    assert whole[1] == alone[0]


def test_groups_that_a_trainer_tore_are_joined_by_name(tmp_path: Path) -> None:
    draw = random.Random(0)
    first, second = record(draw, 0, 0), record(draw, 0, 1)
    first |= {"group_ids": [0, 0, 0, 1], "rewards": [0.0, 0.0, 0.0, 1.0]}
    second |= {"group_ids": [1, 1, 1, 0], "rewards": [0.0, 0.0, 0.0, 0.0]}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    (found,) = read(tmp_path)
    assert found.metrics["groups_all_0"] == 0.5
    assert found.metrics["pass_at_k"] == 0.5
    assert found.metrics["reward_group_std"] == pytest.approx(0.25)


def test_a_step_of_which_some_records_have_rewards_alone(tmp_path: Path) -> None:
    """All rewards count; what is made of gradients is not known of all responses."""
    (tmp_path / "step_1.rank0.jsonl").write_text(json.dumps(PLAIN | {"step": 1}))
    score = {"input": "p", "output": "r", "gts": "1", "score": 0.25, "step": 1}
    (tmp_path / "step_1.rank1.jsonl").write_text(json.dumps(score))
    (found,) = steps(Reader(files([str(tmp_path)])), plan("dr"))
    assert found.metrics["reward_mean"] == (1.0 + 0.0 + 0.25) / 3
    assert found.metrics["longest_quarter"] is None
    assert found.metrics["length_mean"] is None
    (tmp_path / "step_1.rank1.jsonl").unlink()
    (found,) = steps(Reader(files([str(tmp_path)])), plan("dr"))
    assert found.metrics["longest_quarter"] is not None


def rows_of(*groups: tuple[list[float | None], list[int | None], Any]) -> Responses:
    rows = Rows()
    for rewards, lengths, label in groups:
        rows.add(rewards, lengths, label)
    return Responses(rows)


def test_what_responses_say_together_by_hand() -> None:
    """Groups 1, 0 | 0, 0, 0 | 1, 1 | 1; lengths 4, 2 | 9, 9, 1 | 3, 5 | 7."""
    made = rows_of(
        ([1.0, 0.0], [4, 2], "a"), ([0.0] * 3, [9, 9, 1], "b"), ([1.0] * 2, [3, 5], "c"),
        ([1.0], [7], "d"),
    )  # fmt: skip
    assert (made.reward_mean, made.length_mean) == (0.5, 5.0)
    assert made.reward_std == pytest.approx(math.sqrt(2 / 7))
    assert made.reward_group_std == pytest.approx(math.sqrt(0.5) / 3)
    assert (made.share_of_groups(), made.all_wrong, made.all_right) == (2 / 3, 1 / 3, 1 / 3)
    assert (made.pass_at_1, made.pass_at_k) == ((0.5 + 0 + 1 + 1) / 4, 3 / 4)
    assert made.at_longest == 2 / 8
    quantiles = [made.length_quantile(share) for share in (0.0, 0.125, 0.126, 0.75, 0.95, 1.0)]
    assert quantiles == [1, 1, 2, 7, 9, 9]  # of 1 2 3 4 5 7 9 9


def test_rewards_that_say_right_or_wrong_are_0_and_1_or_minus_1_and_1() -> None:
    shares = {}
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (0.0, 2.0), (0.5, 1.0), (1.0, 1.0), (-1.0, -1.0)):
        made = rows_of(([low, high], [1, 1], None), ([low, low], [1, 1], None))
        shares[low, high] = made.pass_at_1, made.pass_at_k, made.all_wrong, made.all_right
    assert shares.pop((0.0, 1.0)) == shares.pop((-1.0, 1.0)) == (0.25, 0.5, 0.5, 0.0)
    assert shares.pop((1.0, 1.0)) == (1.0, 1.0, 0.0, 1.0)
    assert shares.pop((-1.0, -1.0)) == (0.0, 0.0, 1.0, 0.0)
    assert {*shares.values()} == {(None, None, None, None)}


def test_what_responses_do_not_say() -> None:
    """No group of two; a reward or a length that is not known; a step without responses."""
    single = rows_of(([1.0], [3], "a"), ([0.0], [2], "b"))
    assert (single.share_of_groups(), single.reward_group_std, single.pass_at_k) == (None,) * 3
    assert single.reward_std == pytest.approx(math.sqrt(0.5))
    assert (rows_of(([1.0], [3], "a")).reward_std, single.pass_at_1) == (None, 0.5)
    unknown = rows_of(([1.0, None], [3, None], "a"))
    assert (unknown.reward_mean, unknown.length_mean, unknown.at_longest) == (None,) * 3
    assert unknown.length_quantile(0.5) is None
    nothing = rows_of()
    assert (nothing.reward_mean, nothing.length_mean, nothing.reward_std) == (None,) * 3


@pytest.mark.parametrize(
    ("labels", "torn"),
    [("abab", True), ("aabb", False), ([None, "a", "a", "b"], False)],
)
def test_single_rows_are_groups_by_their_names(labels: Any, torn: bool) -> None:
    """Rows of one response each, where every one has a name."""
    each = [([float(at % 2)], [1], label) for at, label in enumerate(labels)]
    found = rows_of(*each).groups
    if labels[0] is None:
        assert found == [[0.0], [1.0], [0.0], [1.0]]
    else:
        assert found == ([[0.0, 0.0], [1.0, 1.0]] if torn else [[0.0, 1.0], [0.0, 1.0]])


def test_the_longest_quarter(tmp_path: Path) -> None:
    """Gradients of equal size per response: ratio 1, response-mean, |A| the same."""
    rows = [[-1.0] * length for length in (8, 2, 4, 4)]
    text = json.dumps({"step": 0, "log_probs": rows, "rewards": [1.0, 0.0, 1.0, 0.0]})
    (tmp_path / "a.jsonl").write_text(text)
    (found,) = read(tmp_path)
    assert found.metrics["longest_quarter"] == pytest.approx(0.25)
    longer = steps(Reader([str(tmp_path / "a.jsonl")]), plan("dapo"))
    assert longer[0].metrics["longest_quarter"] == pytest.approx(8 / 18)


def test_the_longest_quarter_of_records_with_denominators_of_their_own(tmp_path: Path) -> None:
    """Each token of the one weighs 1/10, of the other 1/100."""
    path, rows = tmp_path / "a.jsonl", [[-1.0] * 8, [-1.0] * 2]
    made = {"step": 0, "log_probs": rows, "rewards": [1.0, 0.0]}
    each = [made | {"hyperparameters": {"max_completion_length": size}} for size in (10, 100)]
    each[1]["log_probs"] = [[-1.0] * 4, [-1.0] * 4]
    path.write_text("".join(json.dumps(row) + "\n" for row in each))
    chosen = plan("dr", stages={"aggregate": "token-sum-norm"})
    (found,) = steps(Reader([str(path)]), chosen)
    assert found.metrics["longest_quarter"] == pytest.approx(8 / (8 + 2 + 0.4 + 0.4))


def test_numbers_that_vanish_have_no_effective_sample_size(tmp_path: Path) -> None:
    """The squares of weights below 1e-162 are 0 in a double; those above 1e154 are infinite."""
    for old, engine in ((-500.0, -0.1), (-0.1, -500.0)):
        row = {"step": 0, "log_probs_new": [[old], [old]], "log_probs_old": [[old], [old]]}
        row |= {"log_probs_rollout": [[engine], [engine]], "rewards": [1.0, 0.0]}
        (tmp_path / "a.jsonl").write_text(json.dumps(row))
        (found,) = read(tmp_path)
        assert found.metrics["mismatch.ess"] is None
        assert found.metrics["mismatch.k1"] == pytest.approx(engine - old)


def test_the_kl_of_the_objective(tmp_path: Path) -> None:
    """The mean of two responses' means; whatever β is; there is none without a reference."""
    row = {"step": 0, "log_probs": [[-1.0, -2.0], [-1.5]], "rewards": [1.0, 0.0]}
    row["log_probs_ref"] = [[-1.5, -2.5], [-1.75]]
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    k3 = [math.exp(-d) - 1 + d for d in (0.5, 0.5, 0.25)]
    for chosen in (plan("grpo"), no_kl()):
        (found,) = steps(Reader([str(tmp_path / "a.jsonl")]), chosen)
        assert found.metrics["kl"] == pytest.approx(((k3[0] + k3[1]) / 2 + k3[2]) / 2)
        assert found.metrics["kl_k3"] == pytest.approx(sum(k3) / 3)
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"log_probs_ref": None}))
    (found,) = read(tmp_path)
    assert (found.metrics["kl"], found.metrics["kl_k3"]) == (None, None)


def test_endings_versions_and_repetition(tmp_path: Path) -> None:
    row = {"log_probs": [[-1.0] * 6, [-1.0] * 6], "rewards": [0.0, 1.0], "step": 8}
    said: list[dict[str, Any]] = [
        {"truncated": [1, 0], "weight_versions": [7, 6], "token_ids": [[1, 2, 3, 4] * 2] * 2},
        {"finish_reason": "length", "meta": {"policy_version": 5}},
        {"finish_reasons": ["stop", "length"], "tokens": [["a"] * 6, ["b"] * 6]},
    ]
    said[0]["log_probs"] = [[-1.0] * 8, [-1.0] * 8]
    text = "".join(json.dumps(row | one) + "\n" for one in said)
    (tmp_path / "a.jsonl").write_text(text)
    (found,) = read(tmp_path)
    assert found.metrics["truncated"] == 3 / 5
    assert found.metrics["staleness"] == (1 + 2 + 3) / 3
    # 1234 1234: five 4-grams, four of them different; aaaaaa: three, of one kind
    assert found.metrics["repetition"] == pytest.approx((1 / 5 + 2 / 3) / 2)


@pytest.mark.parametrize("mask", [None, [[1, 0, 1], [1, 1]]])
@pytest.mark.parametrize("kind", ["lines", "parquet", "rows"])
def test_staleness_by_token(tmp_path: Path, kind: str, mask: Any) -> None:
    """The mean over the tokens that count of the steps since each one's policy."""
    row = {"log_probs": [[-1.0] * 3, [-2.0] * 2], "rewards": [0.0, 1.0], "step": 8}
    row["weight_versions"] = [[7, 3, 8], [6, 7]]
    row |= {} if mask is None else {"mask": mask}
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.jsonl")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row, row]), path)
    elif kind == "lines":
        path.write_text(f"{json.dumps(row)}\n" * 2)
    else:  # of one response each
        rows = [
            {name: one if name == "step" else one[at] for name, one in row.items()} for at in (0, 1)
        ]
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    (found,) = steps(Reader([str(path)]), plan("dr"))
    lags = [1, 5, 0, 2, 1] if mask is None else [1, 0, 2, 1]
    assert found.metrics["staleness"] == sum(lags) / len(lags)


def test_repetition_needs_four_tokens(tmp_path: Path) -> None:
    """Of the first response of each record; with three there is no 4-gram."""
    each: list[list[int]] = [[1, 2, 3], [1, 2, 3, 4], [5, 5, 5, 5, 5], []]
    rows = [
        {"step": 1, "log_probs": [[-1.0] * len(ids), [-1.0]], "token_ids": [ids, [9]]}
        for ids in each
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row | {"rewards": [1.0, 0.0]}) + "\n" for row in rows))
    (found,) = steps(Reader([str(path)]), plan("dr"))
    assert found.metrics["repetition"] == (0.0 + 1 / 2) / 2
    path.write_text(json.dumps(rows[0] | {"rewards": [1.0, 0.0]}))
    assert steps(Reader([str(path)]), plan("dr"))[0].metrics["repetition"] is None


def test_without_a_column_of_the_objective_the_rest_is_there(tmp_path: Path) -> None:
    write(tmp_path, log_probs_ref=None)
    run = Run(Reader(files([str(tmp_path)])), plan("grpo", hyperparameters={"beta": 0.04}))
    (step, *_) = run.read()
    (told,) = run.missing
    assert told.startswith("log_probs_ref: missing; the kl stage (k3) needs")
    assert step.metrics["loss"] is None
    assert step.metrics["kl_k3"] is None
    assert step.metrics["reward_mean"] is not None
    assert step.metrics["mismatch.k3"] is not None


def test_ratios_alone_have_rewards_and_lengths(tmp_path: Path) -> None:
    """β asks for a reference, and no sum of tokens can be made."""
    text = json.dumps({"step": 1, "ratios": [[1.1, 0.9], [1.0]], "rewards": [1.0, 0.0]})
    (tmp_path / "a.jsonl").write_text(text)
    made = plan("grpo", hyperparameters={"beta": 0.04})
    (step,) = steps(Reader(files([str(tmp_path)])), made)
    assert step.metrics["loss"] is None
    assert (step.metrics["reward_mean"], step.metrics["length_mean"]) == (0.5, 1.5)


def test_a_dump_without_log_probs_has_rewards(tmp_path: Path) -> None:
    """verl's rollout_data_dir/{step}.jsonl: texts and scores, prompts for groups."""
    row = {"gts": "1", "output": "r"}
    for step, scores in enumerate([(0.0, 1.0, 0.0, 0.0), (1.0, 1.0, 0.0, 1.0)]):
        lines = [row | {"input": f"p{at // 2}", "score": score} for at, score in enumerate(scores)]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    run = Run(Reader(files([str(tmp_path)])), no_kl())
    first, second = run.read()
    (note,) = run.notices
    assert note.startswith("only rewards, and lengths where they are told: ")
    assert first.metrics["reward_mean"] == 0.25
    assert (first.metrics["groups_all_0"], first.metrics["pass_at_k"]) == (0.5, 0.5)
    assert (second.metrics["groups_all_1"], second.metrics["length_mean"]) == (0.5, None)
    areal = {"task_id": 3, "sample_idx": 0, "seqlen": 9, "prompt_len": 4, "tail_version": 6}
    (tmp_path / "x").write_text(json.dumps(areal | {"completion": "c", "reward": 1.0}))
    (found,) = steps(Reader([str(tmp_path / "x")]), no_kl())
    assert (found.number, found.metrics["length_mean"]) == (6, 5.0)


def test_several_rewards_count_as_the_objective_weighs_them(tmp_path: Path) -> None:
    """r = 2·right − format: 2·1 − 0.5, 0 (null counts nothing), 2·1 − 0.5, 0 − 1."""
    rows = {"step": 0, "log_probs": [[-1.0, -0.5], [-0.7], [-0.2], [-0.3]]}
    each = {"right": [1.0, 0.0, 1.0, 0.0], "format": [0.5, None, 0.5, 1.0]}
    weights = {"hyperparameters": {"reward_weights": [2.0, -1.0]}}
    path = tmp_path / "a.jsonl"
    given = {"advantages": [1.0, 0.0, 1.0, 0.0]}
    for more in ({}, given):  # of given advantages the weights are known from the record alone
        path.write_text(json.dumps(rows | {"rewards": each} | weights | more))
        metrics = steps(Reader([str(path)]), plan("dr"))[0].metrics
        assert metrics["reward_mean"] == (1.5 + 0.0 + 1.5 - 1.0) / 4
        assert metrics["rewards/right/mean"] == 0.5
        assert metrics["rewards/format/mean"] == pytest.approx(2 / 3)
    path.write_text(json.dumps(rows | {"rewards": each}))
    assert steps(Reader([str(path)]), plan("dr"))[0].metrics["reward_mean"] == 1.0
    flags = plan("dr", hyperparameters={"reward_weights": "1,0"})
    assert steps(Reader([str(path)]), flags)[0].metrics["reward_mean"] == 0.5
    weights = {"hyperparameters": {"reward_weights": [2.0]}}
    path.write_text(json.dumps(rows | {"rewards": each} | weights | given))
    with pytest.raises(InputError, match=r"a.jsonl:1: .*as many as there are reward functions, 2"):
        steps(Reader([str(path)]), plan("dr"))


def test_reward_functions_that_trls_hook_wrote_beside_their_sum(tmp_path: Path) -> None:
    rows = {"log_probs": [[-1.0, -0.5], [-0.7]], "rewards": [1.0, 0.5]}
    path = tmp_path / "a.jsonl"
    lines = [rows | {"step": 0}, rows | {"step": 1, "rewards/right": [1.0, None]}]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    first, second = steps(Reader([str(path)]), plan("dr"))
    assert first.metrics["rewards/right/mean"] is None
    assert second.metrics["rewards/right/mean"] == 1.0


# ---- which step -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ("run/step_12/rank_3.jsonl", 12),
        ("run/12.jsonl.zst", 12),
        ("train_data_step7.jsonl", 7),
        ("rollouts/rollout_3.rank1.jsonl.gz", 3),
        ("completions_00005.parquet", 5),
        ("global_step_40/dump.jsonl", 40),
        ("dump.rank3.jsonl", None),
        ("rank_0.jsonl", None),
        ("rollouts.jsonl", None),
        ("step_1/step_20.jsonl", 20),
    ],
)
def test_the_step_of_a_name(source: str, step: int | None) -> None:
    assert of_name(source) == step


@pytest.mark.parametrize(
    ("value", "step"),
    [
        ({"step": 3}, 3),
        ({"global_step": 4.0}, 4),
        ({"step": "05"}, 5),
        ({"meta": {"step": 6}}, 6),
        ({"step": True, "iteration": 2}, 2),
        ({"step": 1, "global_step": 9}, 1),
        ({}, 77),
    ],
)
def test_the_step_of_a_record(value: dict[str, Any], step: int) -> None:
    assert StepSource().of_record(Raw(value, "77.jsonl", 1, "", 0)).number == step


def test_a_record_without_a_step_is_told() -> None:
    said = r"no field \(step, global_step, training_step, …\) and no number in the file's name"
    with pytest.raises(InputError, match=rf"a.jsonl:3: which step is this\? {said}"):
        StepSource().of_record(Raw({}, "a.jsonl", 3, "", 0))
    with pytest.raises(InputError, match=r"a.jsonl:3: when: which step .* whole number here"):
        StepSource(("when",)).of_record(Raw({"step": 1}, "a.jsonl", 3, "", 0))


@pytest.mark.parametrize("step", [2**63, -(2**63) - 1, 2**70, 1e300, "9" * 5000])
def test_a_step_beyond_64_bits(step: object) -> None:
    with pytest.raises(InputError, match=r"a.jsonl:3: expected a step of at most 64 bits, got "):
        StepSource().of_record(Raw({"step": step}, "a.jsonl", 3, "", 1))


# ---- which run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("a/step_1/rank_0.jsonl", "a/step_1/rank_1.jsonl", True),
        ("a/step_1/maths/x.jsonl", "a/step_1/code/x.jsonl", True),
        ("a/rank_0.jsonl", "a/rank_1.jsonl.gz", True),
        ("a/dump-00000-of-00002.jsonl", "a/dump-00001-of-00002.jsonl", True),
        ("a/dump_0.jsonl", "a/dump_1.jsonl.zst", True),
        ("a/data_20260101_000000_0.jsonl", "a/data_20260101_000100_1.jsonl", True),
        ("a/9f0c2b1e-77aa-4c1d-9e55-0d1c2b3a4f5e.jsonl", "a/11112222-3333.jsonl", True),
        ("a/run.jsonl", "a/run.1.jsonl", True),
        ("a/seed1.jsonl", "a/seed2.jsonl", False),
        ("a/run_1.jsonl", "a/run_2.jsonl", False),
        ("a/x.maths.jsonl", "a/x.code.jsonl", False),
        ("a/0/dump.jsonl", "a/1/dump.jsonl", False),
        ("a/1.jsonl", "b/1.jsonl", False),
        ("a/x_step1.jsonl", "a/y_step1.jsonl", False),
        ("a/healthy.jsonl.gz", "a/temperature.jsonl.gz", False),
        ("seed_1/step_1/0.jsonl", "seed_2/step_1/0.jsonl", False),
    ],
)
def test_the_run_of_a_name(first: str, second: str, *, same: bool) -> None:
    assert (name_of_run(first) == name_of_run(second)) is same


def test_two_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    each = (
        f"grpo trend {tmp_path}/a; grpo trend {tmp_path}/b; .* grpo diff {tmp_path}/a {tmp_path}/b"
    )
    with pytest.raises(UsageError, match=f"both have step 0: these are 2 runs. Each .*{each}"):
        read(tmp_path)
    for how in ({"jobs": 2}, {"block_bytes": 500}):
        with pytest.raises(UsageError, match="both have step 0"):
            read(tmp_path, **how)
    together = Run(Reader(files([str(tmp_path)])), no_kl(), one_run=True).read()
    assert [step.metrics["reward_mean"] for step in together] == [
        step.metrics["reward_mean"] for step in read(tmp_path / "a")
    ]
    (tmp_path / "b" / "0.jsonl").unlink()
    (tmp_path / "b" / "1.jsonl").unlink()
    (tmp_path / "a" / "2.jsonl").unlink()
    went_on = Run(Reader(files([str(tmp_path)])), no_kl())
    assert [step.number for step in went_on.read()] == [0, 1, 2]


@pytest.mark.parametrize("block_bytes", [1 << 20, 3000])
def test_a_file_whose_steps_go_back_is_told(tmp_path: Path, block_bytes: int) -> None:
    write(tmp_path / "a", count=4, records=2)
    lines = b"".join((tmp_path / "a" / f"{step}.jsonl").read_bytes() for step in range(4))
    (tmp_path / "b.jsonl").write_bytes(lines + lines)
    run = Run(Reader([str(tmp_path / "b.jsonl")], block_bytes=block_bytes), no_kl())
    run.read()
    (note,) = run.notices
    assert f"{tmp_path}/b.jsonl:9: the steps go back from 3 to 0" in note
    mixed = lines.splitlines(keepends=True)
    random.Random(0).shuffle(mixed)
    (tmp_path / "b.jsonl").write_bytes(b"".join(mixed * 4))
    shuffled = Run(Reader([str(tmp_path / "b.jsonl")], block_bytes=block_bytes), no_kl())
    shuffled.read()
    assert not shuffled.notices


@pytest.mark.parametrize(
    ("files", "places"),
    [
        (["x/run_1.jsonl", "x/run_2.jsonl"], ["x/run_1.jsonl", "x/run_2.jsonl"]),
        (["a/step_1.jsonl", "b/step_1.jsonl", "a/step_2.jsonl"], ["a", "b/step_1.jsonl"]),
        (["x/a_step1.jsonl", "x/b_step1.jsonl", "x/a_step2.jsonl"], ["x/a_*", "x/b_step1.jsonl"]),
        (["a/step_1.jsonl", "b/step_1.jsonl", "c/step_9.jsonl"], [f"{n}/step_1.jsonl" for n in "ab"]
            + ["c/step_9.jsonl"]),
        ([f"{name}/step_1.jsonl" for name in "abcde"], [f"{n}/step_1.jsonl" for n in "abcde"]),
        (["a/step_1/0.jsonl", "b/step_1/0.jsonl", "a/step_2/x/y.jsonl"], ["a", "b/step_1/0.jsonl"]),
    ],
)  # fmt: skip
def test_what_two_runs_are_called(files: list[str], places: list[str]) -> None:
    """Its one file; its folder, where no other run is in it; else a pattern."""
    each = [f"grpo trend {place}".replace("x/a_*", "'x/a_*'") for place in places]
    more = f"; … {len(places) - 3} more" if len(places) > 3 else ""
    beside = " ".join(places).replace("x/a_*", "'x/a_*'")
    said = f"; side by side: grpo diff {beside}" if len(places) == 2 else ""
    assert str(two_runs(Clash(1, files[0], files[1]), files)) == (
        f"{files[0]} and {files[1]} both have step 1: these are {len(places)} runs. "
        f"Each by itself: {'; '.join(each[:3])}{more}{said}; --one-run takes them as parts of one"
    )


def test_two_runs_of_which_nothing_else_is_known_are_called_by_what_their_files_share() -> None:
    told = str(two_runs(Clash(4, "a/step_4.jsonl", "b/step_4.jsonl"), [], "diff"))
    assert "Each by itself: grpo diff a; grpo diff b; side by side: grpo diff a b;" in told


STEPS_BACK = [
    ([0, 1, 2, 1, 2, 3], []),  # by one: neighbours mix
    ([0, 1, 2, 0, 1], [(4, 2, 0)]),
    ([5, 3, 4, 5, 6, 4, 5], [(2, 5, 3), (6, 6, 4)]),
    ([9, 7, 5, 3], [(2, 9, 7), (3, 7, 5), (4, 5, 3)]),
    ([19, 17, 15, 13, 11, 9, 7, 5, 3], None),
    ([9, 7, 5, 3, 1, 0], None),  # more often than three times: in no order at all
    ([3, 3, 2, 4, 2], [(5, 4, 2)]),
]


@pytest.mark.parametrize(("numbers", "returns"), STEPS_BACK)
def test_where_steps_go_back(numbers: list[int], returns: list[tuple[int, int, int]]) -> None:
    """The same wherever the file is cut."""
    for first in range(len(numbers)):
        for second in range(first, len(numbers)):
            whole = Origins()
            for part in (range(first), range(first, second), range(second, len(numbers))):
                piece = Origins()
                for at in part:
                    piece.add(numbers[at], "a.jsonl", at + 1)
                whole.merge(piece)
            told = [*whole.returns()]
            if not returns:
                assert told == []
                assert len(whole.files["a.jsonl"].returns) == (0 if returns == [] else 4)
                continue
            line, high, to = returns[0]
            (said,) = told
            assert said.startswith(f"a.jsonl:{line}: the steps go back from {high} to {to}: a run")
            assert [tuple(one) for one in whole.files["a.jsonl"].returns] == returns


@pytest.mark.parametrize(
    ("signatures", "told"),
    [
        ({}, []),
        ({"a|b": 3}, []),
        ({"a|c": 5, "a|b": 2}, ["change at step 5: b → c"]),
        ({"a|b": 2, "x|c": 2}, ["differ within step 2: a → x, b → c"]),
        ({"d|b": 9, "a|b": 0, "a|c": 5}, ["change at step 5, and 1 times more: b → c"]),
    ],
)
def test_what_is_said_of_settings_that_change(signatures: Any, told: list[str]) -> None:
    assert [*changes(signatures)] == [f"the objective's settings {one}" for one in told]


def test_settings_change_at_the_first_step_that_has_them(tmp_path: Path) -> None:
    """Whichever piece of the file is read first."""
    write(tmp_path, count=4, records=3)
    texts = [(tmp_path / f"{step}.jsonl").read_text() for step in range(4)]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    for at in range(3, 12):
        lines[at]["hyperparameters"] = {"epsilon_low": 0.1}
    for made in (lines, lines[:3] + lines[:2:-1]):
        (tmp_path / "all").write_text("".join(json.dumps(line) + "\n" for line in made))
        run = Run(Reader([str(tmp_path / "all")], block_bytes=1000), no_kl())
        run.read()
        assert [*run.signatures.values()] == [0, 1]


def test_settings_that_change_are_told(tmp_path: Path) -> None:
    write(tmp_path, count=3)
    (tmp_path / "2.jsonl").write_text(
        "".join(
            json.dumps(json.loads(line) | {"hyperparameters": {"epsilon_low": 0.1}}) + "\n"
            for line in (tmp_path / "2.jsonl").read_text().splitlines()
        )
    )
    run = Run(Reader(files([str(tmp_path)])), no_kl())
    run.read()
    (note,) = run.notices
    assert note == (
        "the objective's settings change at step 2: "
        "surrogate:clip[low=0.2,high=0.2] → surrogate:clip[low=0.1,high=0.2]"
    )


# ---- onsets ---------------------------------------------------------------------------------


def noise(seed: int, count: int = 60, correlation: float = 0.0) -> Any:
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(count)
    for at in range(1, count):
        values[at] += correlation * values[at - 1]
    return values


def test_slopes_and_trends() -> None:
    # The slopes of all pairs: 1, 1, 1, 49.5, 33.33 and 98; by hand the median is between 1 and 33.
    rows = np.array([[0.0, 1.0, 2.0, 100.0], [0.0, 0.5, 1.0, 1.5]])
    assert theil_sen(rows).tolist() == [(1.0 + 100 / 3) / 2, 0.5]
    # S = 6 of 6 pairs; Var = 4·3·13/18 = 26/3; (6 − 1)/√(26/3). Then S = 3 of 3; Var = 3·2·11/18.
    rising = mann_kendall(np.array([[0.0, 1.0, 2.0, 3.0, 0.0], [1.0] * 5]), np.array([4, 3]))
    assert rising[0] == pytest.approx([5 / math.sqrt(26 / 3), 2 / math.sqrt(11 / 3)])
    assert rising[1].tolist() == [0.0, 0.0]
    # Of a long series, the past is the last thirty.
    fallen = np.concatenate([np.full(30, 9.0), np.arange(30.0)])[None]
    (last,) = mann_kendall(fallen, np.array([60]))[0]
    assert last == pytest.approx(434 / math.sqrt(30 * 29 * 65 / 18))


def test_series_that_are_looked_at_together_are_looked_at_alone() -> None:
    """One by one, a series has the same bits: of several lengths, some with two changes."""
    series = []
    for seed in range(12):
        values = noise(seed, (60, 60, 450)[seed % 3], 0.3)
        values[40:] += 9.0 * (seed % 2)
        values[20:] += 8.0 * (seed % 4 == 3)
        series.append(Series(values, drift_up=seed % 5 == 0, drift_down=seed % 5 == 1))
    alone = [onset(one.values, drift_up=one[1], drift_down=one[2]) for one in series]
    assert onsets(series) == alone
    assert sum(one is not None for one in alone) >= 6


@pytest.mark.parametrize("seed", range(5))
def test_a_shift_is_found_where_it_is(seed: int) -> None:
    values = noise(seed)
    values[30:] += 6.0
    found = onset(values)
    assert found is not None
    assert (found.kind, found.up) == ("shift", True)
    assert abs(found.at - 30) <= 2
    assert onset(-values) is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_is_found_in_the_direction_asked_for(seed: int) -> None:
    values = noise(seed)
    values[30:] += 1.5 * np.arange(1, 31)
    found = onset(values, drift_up=True)
    assert found is not None
    assert abs(found.at - 30) <= 4
    assert found.up


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_is_silent(correlation: float) -> None:
    found = [onset(noise(seed, 60, correlation), drift_up=True) for seed in range(40)]
    assert sum(one is not None for one in found) <= 1


def test_one_outlier_is_no_shift() -> None:
    values = noise(1)
    values[40] += 50.0
    assert onset(values) is None


def test_a_slope_that_was_there_is_no_finding() -> None:
    assert onset(noise(2) + 0.5 * np.arange(60), drift_up=True) is None


def test_what_becomes_exactly_0_is_found_whatever_its_noise() -> None:
    values = np.exp(noise(3, 40))
    values[30:] = 0.0
    (found,) = findings(run_of("kl_k3", values))
    assert (found.onset, found.kind) == (30, "shift")
    assert "kl_k3 is exactly 0 from step 30 on" in found.sentence
    values[32] = 0.1
    assert all(
        one.onset > 30 for one in findings(run_of("kl_k3", values)) if "exactly" in one.sentence
    )


def run_of(name: str, values: Any) -> list[Step]:

    nothing = dict.fromkeys(METRICS)
    return [Step(at, "a", nothing | {name: float(one)}, {}) for at, one in enumerate(values)]


def test_a_limit_is_passed_by_most_of_five_steps() -> None:
    values = np.ones(20)
    values[7] = 1.2
    assert not findings(run_of("mismatch.mult", values))
    values[[12, 14, 16]] = 1.1
    (found,) = findings(run_of("mismatch.mult", values))
    assert (found.kind, found.onset, found.worst_step) == ("limit", 12, 7)


def test_tails() -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_normal(10_000)
    whole, parts = Tail(), Tail()
    whole.add(values)
    for part in np.array_split(values, 7):
        other = Tail()
        other.add(part)
        parts.merge(other)
    for share in (0.001, 0.3, 0.999):
        expected = np.sort(values)[math.ceil(share * 10_000) - 1]
        assert whole.quantile(share) == parts.quantile(share)
        assert whole.quantile(share) == pytest.approx(expected, rel=4e-3)
        assert pickle.loads(pickle.dumps(parts)).quantile(share) == whole.quantile(share)
    assert Tail().quantile(0.5) is None


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("count", [40, 700, 5000])
def test_the_quantiles_of_numbers_that_wait(count: int, sign: float) -> None:
    """Near the top a bound leaves few to sort; ties, and a top of few different ones, as well."""
    draw = np.random.default_rng(count)
    for values in (draw.exponential(size=count), draw.integers(1, 4, count).astype(float)):
        tail = Tail()
        tail.add(sign * values)
        ordered = np.sort(sign * values)
        for place in {1, count // 2, *range(count - 20, count + 1)}:
            found = tail.quantile((place - 0.5) / count)
            assert found == pytest.approx(ordered[place - 1], rel=4e-3)


def test_tails_that_are_counted_apart_add_up() -> None:
    """Numbers of both signs, of other sizes each time: what is counted grows at both ends."""
    draw = np.random.default_rng(1)
    whole, merged = [], Tail()
    for power in (0, 3, -4):
        values = draw.standard_normal(9000) * 10.0**power
        whole.append(values)
        other = Tail()
        other.add(values)
        merged.merge(pickle.loads(pickle.dumps(other)))
    ordered = np.sort(np.concatenate(whole))
    for place in (1, 100, 9000, 13_500, 20_000, 26_990, 27_000):
        found = merged.quantile((place - 0.5) / 27_000)
        assert found == pytest.approx(ordered[place - 1], rel=4e-3)


def test_tails_of_few_numbers_travel_with_their_signs() -> None:
    """Few numbers wait until they are asked for, or until there are many."""
    values = np.array([-3.0, -0.01, 0.0, -0.0, 2e-40, 0.5, 7.0, 7.0])
    few = Tail()
    few.add(values[:3])
    sent = pickle.loads(pickle.dumps(few))
    sent.add(values[3:])
    for place, expected in enumerate(np.sort(values).tolist(), 1):
        assert sent.quantile(place / 8) == pytest.approx(expected, rel=4e-3, abs=1e-39)
    many = Tail()
    for _ in range(3000):
        many.merge(sent)
    assert [many.quantile(each / 8) for each in range(1, 9)] == [
        sent.quantile(each / 8) for each in range(1, 9)
    ]


@pytest.mark.parametrize("text", ["nothing", "rewards/>1", "k3>1", "mismatch.k3>x", "loss=1"])
def test_conditions_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="--fail-on"):
        read_condition(text)


# ---- real runs ------------------------------------------------------------------------------

RUNS = Path(__file__).parent.parent.parent / "samples" / "run"


def found_in(name: str) -> list[Any]:
    return findings(steps(Reader([str(RUNS / name)]), plan("trl/grpo")), Flags(["-v", "trl/grpo"]))


def test_a_healthy_run_of_trl_is_silent() -> None:
    assert found_in("healthy.jsonl.gz") == []


def test_a_temperature_on_one_side_is_found_where_it_began() -> None:
    found = found_in("temperature.jsonl.gz")
    assert {one.onset for one in found} == {30}
    assert {"mismatch.k3", "mismatch.mult"} <= {one.metric for one in found}
    assert all(one.command.startswith("grpo ") for one in found)


def grpo(capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> tuple[int, str, str]:
    from grpo_cli.commands.main import application

    code = application(words[0])(list(words), standalone_mode=False)
    out, err = capsysbinary.readouterr()
    return code or 0, out.decode(), err.decode()


def test_the_command(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = str(RUNS / "temperature.jsonl.gz")
    words = ("trend", path, "-v", "trl/grpo")
    code, out, _ = grpo(capsysbinary, *words, "--fields", "mismatch.k3", "--limit", "4")
    assert code == 0
    assert out.splitlines()[0].split() == ["step", "mismatch.k3"]
    assert "mismatch.k3 rose at step 30" in out
    shown = [line.split()[0] for line in out.splitlines()[3:9]]
    assert shown == ["0", "⋮", "29", "30", "⋮", "59"]  # what began is not left out
    code, out, err = grpo(capsysbinary, *words, "--json", "--fail-on", "mismatch.k3>0.01")
    assert code == 1
    assert err.splitlines()[-1].startswith("grpo: --fail-on mismatch.k3>0.01: ")
    document = json.loads(out)
    assert [row["step"] for row in document["steps"]] == list(range(60))
    assert document["findings"][0]["onset"] == 30
    code, out, _ = grpo(capsysbinary, *words, "--format", "csv", "--fields", "nll")
    assert out.startswith(f"step,file,nll\n0,{path},1.6")
    code, out, _ = grpo(capsysbinary, *words, "--plot", "--fail-on", "findings")
    assert code == 1
    assert "▲" in out


def run_words(capsysbinary: pytest.CaptureFixture[bytes], line: str) -> tuple[list[str], str]:
    words = shlex.split(line, comments=True)
    code, out, err = grpo(capsysbinary, *words[1:])
    assert code == (1 if words[1] == "check" and "error " in out else 0), err
    return words, out


def test_the_commands_of_a_finding_show_where_it_began_and_why(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for one in found_in("temperature.jsonl.gz"):
        words, out = run_words(capsysbinary, one.command)
        assert words[words.index("--record") + 1] == "30/0"  # the onset, not the worst step
        assert f" {one.worst_step}/0 " in one.worst_command
        told = re.search(r"# step 30, token #(\d+) of response (\d+): ([\d.]+)$", one.command)
        assert told is not None
        place, response, size = told.groups()
        top = out.rpartition("─\n")[2].split("\n")[0].split()
        assert top[:2] == [response, place]
        assert size in " ".join(top)
        _, out = run_words(capsysbinary, one.cause)
        assert "error temperature" in out


def test_every_kind_of_finding_has_commands_that_run(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each watched metric of a healthy run, were it a hundred times as much from step 30 on."""
    monkeypatch.setenv("COLUMNS", "200")
    healthy = steps(Reader([str(RUNS / "healthy.jsonl.gz")]), plan("trl/grpo"))
    lines: dict[str, str] = {}
    for name in [one.name for one in METRICS.values() if one.watched]:
        run = []
        for step in healthy:
            value = step.metrics[name]
            times = 100.0 if value is not None and step.number > 29 else 1.0
            only = {name: None if value is None else times * (value + 1.0)}
            run.append(replace(step, metrics=dict.fromkeys(METRICS) | {"objective": 0.0} | only))
        for found in findings(run, Flags(["-v", "trl/grpo"], ["--from", "canonical"])):
            if found.onset == 30:
                for line in (found.command, found.cause):
                    lines.setdefault(re.sub("--response [0-9]+|#.*", "", line), line)
    kinds = {tuple(line.split()[:2]) for line in lines}
    assert kinds == {("grpo", word) for word in ("show", "check", "eval", "explain")}
    for line in lines.values():
        words, out = run_words(capsysbinary, line)
        assert "30/0" in out
        if words[1] == "check":  # which has no objective, and reads as the others do
            assert words[3:] in (
                ["--record", "30/0", "--from", "canonical"],
                ["--where", "step==30", "--from", "canonical"],
            )


@pytest.mark.parametrize(
    ("values", "passed"), [([1.2], True), ([1.2, 1.0], False), ([1.0, 1.2, 1.3], True)]
)
def test_a_limit_of_a_few_steps_is_passed_by_most_of_them(values, passed):
    assert bool(findings(run_of("mismatch.mult", values))) is passed


def prime_rl(step: int) -> dict[str, Any]:
    return {
        "trainer_logprobs": [-1.0],
        "inference_logprobs": [-1.0],
        "loss_mask": [True],
        "token_ids": [5],
        "advantages": [1.0],
        "export_step": step,
    }


def slime(step: int) -> dict[str, Any]:
    sample = {"tokens": [1, 2], "response_lengths": 1, "log_probs": [-1.0], "rewards": 1.0}
    return {"rollout_id": step, "samples": [sample | {"advantages": [1.0], "loss_masks": [1]}]}


PLAIN = {"log_probs": [[-1.0, -2.0], [-1.0]], "rewards": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("made", "flags", "field"),
    [
        (lambda step: PLAIN | {"global_step": step, "step": "warm-up"}, {}, "global_step"),
        (lambda step: PLAIN | {"meta": {"train_step": step}}, {}, "meta.train_step"),
        (lambda step: PLAIN | {"step": 7, "at": [str(step)]}, {"field": ("at", 0)}, "at[0]"),
        (prime_rl, {}, "export_step"),
        (slime, {}, "rollout_id"),
    ],
    ids=["named", "meta", "asked for", "prime-rl", "slime"],
)
def test_the_commands_of_a_step_name_the_field_that_says_it(
    made: Any, flags: Any, field: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """They are run, and read the records of that step."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(made(step))}\n" for step in (1, 2, 2, 3)))
    found = steps(Reader([str(path)]), no_kl(), StepSource(**flags))[1]
    line = command(found, None, None, Flags(["-p", "beta=0.0"]))
    assert shlex.split(line)[2:5] == [str(path), "--where", f"{field}==2"]
    words = shlex.split(line, comments=True)
    code, out, err = grpo(capsysbinary, *words[1:], "--level", "batch", "--json")
    assert code == 0, err
    assert json.loads(out)["total"]["records"] == 2


def test_the_commands_of_a_step_that_its_file_says_name_the_file(tmp_path: Path) -> None:
    for said in ({}, {"step": 2}):  # which it may say as well
        for step in (1, 2):
            text = f"{json.dumps(PLAIN | (said and {'step': step}))}\n"
            (tmp_path / f"step_{step}.jsonl").write_text(text * 2)
        found = read(tmp_path)[1]
        words = shlex.split(command(found, None, None, Flags()), comments=True)
        assert words == ["grpo", "eval", str(tmp_path / "step_2.jsonl"), "--level", "response"]


def test_the_commands_of_a_step_put_rows_together_as_trend_did(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Rows of a response each: the flags that made groups of them go along, and those alone."""
    path = tmp_path / "run.jsonl"
    rows = [
        {"step": step, "uid": uid, "log_probs": [-1.0], "reward": reward, "env": env}
        for step in (1, 2)
        for env, uid in (("math", 0), ("code", 1))
        for reward in (0.0, 1.0)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    reading = ReadingOptions(
        group_by="step,uid", group_anywhere=True, where=["env==math"], on_error="skip"
    )
    flags = flags_of(ObjectiveOptions(variant="dr", beta=None), reading)
    found = steps(reading.reader([str(path)], None), no_kl())[1]
    line = command(found, None, None, flags)
    code, out, err = grpo(
        capsysbinary, *shlex.split(line, comments=True)[1:], "--level", "batch", "--json"
    )
    assert code == 0, err
    total = json.loads(out)["total"]
    assert (total["groups"], total["responses"]) == (1, 2)
    assert json.loads(out)["variant"] == "dr"
    assert flags.reading == ["--group-by", "step,uid", "--where", "env==math", "--group-anywhere"]


def test_a_few_steps_are_no_run(grpo, dump):
    shown = grpo("trend", str(dump({"step": 1}, {"step": 2}))).stdout.replace("\n", " ")
    assert "shifts and drifts are looked for in 16 steps, there are 2" in shown


WHOLE = {
    "log_probs_old": [[-0.9, -0.2], [-1.2]],
    "log_probs_ref": [[-1.0, -0.25], [-1.0]],
    "log_probs_rollout": [[-0.9, -0.201], [-1.2]],
    "log_probs_new": [[-0.9, -0.3], [-1.1]],
    "entropies": [[0.5, 0.6], [0.7]],
    "rewards": [1.0, 0.0],
    "tokens": [["a"] * 2, ["b"]],
    "finish_reasons": ["stop", "length"],
    "weight_versions": [0, 0],
}
RATIOS = ("clip_low", "clip_high", "ratio_mean", "ratio_p999", "ess")
NEEDED = {
    "log_probs_ref": ("kl_k3",),
    "log_probs_rollout": ("mismatch.k1", "mismatch.k3", "mismatch.mean_abs", "mismatch.p999"),
    "entropies": ("entropy",),
    "finish_reasons": ("truncated",),
    "weight_versions": ("staleness",),
}


def watched(grpo: Any, path: str, *words: str) -> tuple[str, int]:
    """What is printed below the table; and of the document, the watched series with 16 values."""
    shown = grpo("trend", path, *words, "--limit", "2").stdout
    document = json.loads(grpo("trend", path, *words, "--json").stdout)
    counts = {
        one.name: sum(step[one.name] is not None for step in document["steps"])
        for one in METRICS.values()
        if one.watched
    }
    below = " ".join(shown.partition("no change found in ")[2].split())
    return "no change found in " + below, sum(count >= 16 for count in counts.values())


@pytest.mark.parametrize("lacking", [(), *((one,) for one in NEEDED), (*NEEDED, "log_probs_old")])
def test_a_verdict_says_how_many_series_it_is_of_and_which_there_are_not(
    lacking: tuple[str, ...], grpo: Any, dump: Any
) -> None:
    kept = {name: None if name in lacking else value for name, value in WHOLE.items()}
    versions = kept["weight_versions"]
    now = [versions and {"weight_versions": [step] * 2} for step in range(20)]
    path = str(dump(*({"step": at} | kept | (one or {}) for at, one in enumerate(now))))
    said, count = watched(grpo, path, "-v", "dr")
    limits = "" if "log_probs_rollout" in lacking else "; no limit passed"
    assumed = "log_probs_old" in lacking
    count -= len(RATIOS) if assumed else 0
    assert said.startswith(f"no change found in {count} series over 20 steps{limits}")
    for column, names in NEEDED.items():
        needs = "needs" if len(names) == 1 else "need"
        assert (f"{', '.join(names)} ({needs} {column})" in said) == (column in lacking)
    told = f"constant by assumption: {', '.join(RATIOS)} (log_probs_old is missing, so every"
    assert (told in said) == assumed


def test_what_the_objective_lacks_is_why_the_update_has_no_series(grpo: Any, dump: Any) -> None:
    """A column that the objective needs is named; the same with advantages that are not there."""
    kept = WHOLE | {"log_probs_ref": None, "weight_versions": None}
    path = str(dump(*({"step": step} | kept for step in range(20))))
    said, count = watched(grpo, path, "-v", "grpo", "--beta", "0.1")
    assert f"in {count} series over" in said
    update = "clip_low, clip_high, gradient_norm, longest_quarter, ratio_mean, ratio_p999, ess"
    assert f"loss, kl_k3, {update} (need log_probs_ref)" in said


def test_a_verdict_about_asked_columns_names_those_alone(grpo: Any, dump: Any) -> None:
    path = str(dump(*({"step": step} for step in range(20))))
    said, _ = watched(grpo, path, "-v", "dr", "--fields", "loss,kl_k3,mismatch.k3,mismatch.ess")
    assert said.endswith("not computed: mismatch.k3, mismatch.ess (need log_probs_rollout)")


def test_a_trend_that_takes_records_as_on_policy_says_so(grpo: Any, dump: Any) -> None:
    """And not where the ratio is one against the engine, which needs no log_probs_old."""
    note = "note: log_probs_old is missing: taken as on-policy, old := new, every ratio is 1"
    old = {"log_probs_old": None, "log_probs_rollout": WHOLE["log_probs_rollout"]}
    path = str(dump({"step": 1} | old, {"step": 2} | old))
    for words, told in ((["-v", "dr"], True), (["-v", "dr", "--ratio", "rollout"], False)):
        for name in ("trend", "eval"):
            assert (note in grpo(name, path, *words).stderr) == told, (name, words)


def test_a_finding_without_an_objective_is_shown_by_check() -> None:
    """``show`` and ``eval`` would say again that a column is missing."""
    place = Place("a b.jsonl", 3, "it's 3", 1, 7, 0.5)
    flags = Flags(["-v", "dr"], ["--where", "x==1"])
    told = "  # step 4, token #7 of response 1: 0.5"
    read = "'a b.jsonl' --record 'it'\"'\"'s 3'"
    for objective, wanted in (
        (None, f"grpo check {read} --where x==1{told}"),
        (
            0.5,
            f"grpo show {read} --response 1 --color-by mismatch -v dr --where x==1{told}",
        ),
    ):
        step = Step(4, "a b.jsonl", {"objective": objective}, {"mismatch": place})
        assert command(step, place, "mismatch", flags) == wanted
