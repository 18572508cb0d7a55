"""Records evaluated together against the same ones alone; bad ones among them; totals."""

from __future__ import annotations

import json
import re
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, some

from grpo_cli import evaluate

RECORD: dict[str, Any] = {
    "id": "r",
    "log_probs_new": [[-1.0, -2.0], [-0.5, -0.25]],
    "log_probs_old": [[-1.1, -2.1], [-0.4, -0.2]],
    "log_probs_ref": [[-1.2, -2.2], [-0.3, -0.1]],
    "log_probs_rollout": [[-1.0, -2.1], [-0.4, -0.2]],
    "rewards": [1.0, 0.0],
    "advantages": [0.5, -0.25],
    "mask": [[1, 0], [1, 1]],
    "group_ids": ["a", "b"],
    "tokens": [["x", "y"], ["z", "z"]],
}
COLUMNS = [key for key in RECORD if key.startswith("log_probs")]


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def rows(path: Path, records: list[Any], level: str = "token") -> Any:
    words = ("eval", write(path, records), "-v", "dr", "--batch", "record", "--level", level)
    return answer(*words, "-q")["records"]


def left_out(path: Path, records: list[Any]) -> tuple[int, list[tuple[int, str]]]:
    """How many records were evaluated, and the line and path of each error."""
    flags = ("-v", "dr", "--level", "batch", "--json", "--on-error", "skip", "-q")
    result = run("eval", write(path, records), *flags)
    errors = [json.loads(line)["error"] for line in result.stderr.splitlines() if line[0] == "{"]
    count = json.loads(result.stdout)["total"]["records"] if result.stdout else 0
    return count, [(error["line"], error["path"]) for error in errors]


@each("key", ["log_probs_old", "advantages", "mask", "group_ids", "tokens"])
def test_a_null_among_values_counts_as_absent_where_it_stands(tmp_path: Path, key: str) -> None:
    path = tmp_path / "data.jsonl"
    both = RECORD, {**RECORD, key: None}
    alone = [rows(path, [record])[0] for record in both]
    assert alone[0] != alone[1]
    for order in set(permutations((0, 0, 1, 1))):
        together = rows(path, [both[which] for which in order])
        assert together == [{**alone[which], "line": at} for at, which in enumerate(order, 1)]


NO_ROW = ["", {}, "ab", {"a": 1, "b": 2}, None, 2, [True, False], [-1.0, False]]


@each("key", COLUMNS)
@each("row", NO_ROW)
def test_what_is_no_list_of_numbers_is_refused_wherever_it_stands(
    tmp_path: Path, key: str, row: object
) -> None:
    bad = {**RECORD, key: [RECORD[key][0], row], "mask": None, "tokens": None}
    count, ((line, path),) = left_out(tmp_path / "data.jsonl", [RECORD, bad, RECORD])
    assert (count, line, path.partition("[")[0]) == (2, 2, key)


EMPTY = {name: [RECORD[name][0], []] for name in COLUMNS} | {"rewards": [1, 0]}
BY_TOKEN = {**RECORD, "advantages": [[0.5, 1.0], [0.0, 2.0]], "mask": None}


@each(
    ("good", "wrong", "path"),
    [
        *((EMPTY, {key: [RECORD[key][0], ""]}, f"{key}[1]") for key in COLUMNS),
        *((EMPTY, {key: [RECORD[key][0], {}]}, f"{key}[1]") for key in COLUMNS),
        (BY_TOKEN, {"advantages": [[0.5, 1.0], [0.5, True]]}, "advantages[1][1]"),
        (BY_TOKEN, {"advantages": [[0.5, 1.0], [False, 0.5]]}, "advantages[1][0]"),
        (BY_TOKEN, {"advantages": [[0.5, 1.0], [2.0, True]]}, "advantages[1][1]"),
    ],
)
def test_what_is_empty_or_a_boolean_is_no_number(
    tmp_path: Path, good: Any, wrong: Any, path: str
) -> None:
    found = left_out(tmp_path / "data.jsonl", [good, {**good, **wrong}, good])
    assert found == (2, [(2, path)])


@each("level", ["record", "token"])
def test_settings_that_a_row_does_not_read_change_nothing(tmp_path: Path, level: str) -> None:
    """Records that agree in the others are evaluated together, with the same numbers."""
    ignored = [{**RECORD, "id": at, "num_items_in_batch": at % 5 + 1} for at in range(20)]
    records = [one | {"epsilon": 0.1 + at // 10} for at, one in enumerate(ignored)]
    agreeing = [one | {"num_items_in_batch": 1} for one in records]
    path = tmp_path / "a.jsonl"
    assert rows(path, records, level) == rows(path, agreeing, level)


MIXED: list[dict[str, Any]] = [
    {"epsilon": 0.2, "beta": 0.04, "delta": 3.0},
    {"epsilon": 0.1, "beta": 0.5, "delta": 1.5},
    {"epsilon": 0.3, "beta": 1, "delta": None},
    {"epsilon": 1.5, "beta": 0.0, "delta": 2.0},
    {"epsilon_low": 0.0, "epsilon_high": 0.7, "beta": 0.1},
    {"epsilon": 1.25, "beta": 0.04, "std_ddof": 0},
    {},
]
"""Settings of one record each: with and without, null, 0 and large ones."""


@pytest.mark.more
@each("variant", ["grpo", "two-sided", "trl/dapo"])
def test_records_of_other_settings_have_the_rows_that_they_have_alone(
    tmp_path: Path, variant: str
) -> None:
    path = tmp_path / "a.jsonl"
    columns = {key: value for key, value in RECORD.items() if key != "advantages"}
    columns |= {"group_ids": ["a", "a"], "hyperparameters": {}}
    items = [{"num_items_in_batch": at + 1.0} for at in range(len(MIXED))]
    own = [*MIXED[:3], *({**one, **other} for one, other in zip(MIXED, items, strict=True))]
    records = [{**columns, "hyperparameters": one} for one in own]
    flags = ("-v", variant, "--batch", "record", "--level", "token")
    together = answer("eval", write(path, records), *flags)
    notes = run("eval", path, *flags).stderr
    assert re.findall("epsilon_low is ([0-9.]+):", notes) == ["1.5", "1.25"]
    alone = [answer("eval", write(path, [record]), *flags) for record in records]
    assert together["records"] == [
        {**one["records"][0], "line": at} for at, one in enumerate(alone, 1)
    ]
    assert "low=mixed" in together["signature"]


@each(
    ("name", "values"),
    [
        ("beta", [0.04, -0.1, 0.5]),  # below the least, among allowed ones
        ("gamma", [0.5, 2, 1.0, 0]),
        ("gamma", [0, 1, 2]),
        ("std_ddof", [0.0, 0.5, 1.0]),  # a fraction between two whole numbers
        ("beta", [0.1, True, 0.2]),
        ("beta", [0.1, "0.1", 0.2]),
        ("epsilon_high", [0.3, None, 0.4]),
        ("num_items_in_batch", [7, 8, 0, 9]),
    ],
)
@each("nested", [True, False])
def test_a_value_is_refused_or_taken_as_it_is_alone(
    tmp_path: Path, name: str, values: list[Any], nested: bool
) -> None:
    path, gap = tmp_path / "a.jsonl", {"epsilon": 0.2}
    given = [gap] * nested + [gap | {name: value} for value in values]
    records = [RECORD | ({"hyperparameters": one} if nested else one) for one in given]
    alone = [left_out(path, [record]) for record in records]
    count, errors = left_out(path, records)
    assert count == sum(one for one, _ in alone)
    assert errors == [(at, place) for at, (_, each) in enumerate(alone, 1) for _, place in each]


def test_both_sides_of_verl_are_used_where_a_side_is_null(tmp_path: Path) -> None:
    sides = [(0.1, None), (0.2, 0.3), (0.3, None)]
    given = [
        {"clip_ratio": both, "clip_ratio_low": low, "clip_ratio_high": 0.4} for both, low in sides
    ]
    records = [RECORD | {"framework": {"name": "verl"}, "hyperparameters": one} for one in given]
    path = tmp_path / "a.jsonl"
    alone = [rows(path, [record])[0] for record in records]
    assert rows(path, records) == [one | {"line": at} for at, one in enumerate(alone, 1)]


WRONG = [
    {"rewards": None, "advantages": None},
    {"log_probs_old": [[-1.1, -2.1], [-1e300, -0.2]]},
    {"log_probs_old": [[0.5, -2.0], [-0.5, -0.25]]},
]


@pytest.mark.more
@each(("every", "wrong"), some([*product([1, 3], WRONG)], 3))
def test_many_bad_records_of_many_are_each_left_out(
    tmp_path: Path, wrong: dict[str, Any], every: int
) -> None:
    """More than Python's stack has frames."""
    records = [{**RECORD, "id": at} | (wrong if at % every == 0 else {}) for at in range(1050)]
    flags = ("-v", "dr", "--only", "id", "--on-error", "skip", "-q", "--max-errors", "0")
    result = run("eval", write(tmp_path / "a.jsonl", records), *flags)
    assert result.stdout.split() == [str(at) for at in range(1050) if at % every]
    *told, last = result.stderr.splitlines()
    lines = [int(line.split(":")[2]) for line in told]
    assert lines == [at + 1 for at in range(1050) if at % every == 0]
    assert last == f"grpo: skipped {len(lines):,} of 1,050 records"


@each(("most", "kept"), [("0", 27), ("1", 1), ("3", 3), ("27", 27), ("28", 27), (None, 20)])
def test_the_first_errors_are_told_and_all_counted(
    tmp_path: Path, most: str | None, kept: int
) -> None:
    path = write(tmp_path / "a.jsonl", [RECORD, *({f"key_{at}": 1} for at in range(27)), RECORD])
    flags = () if most is None else ("--max-errors", most)
    for command in (("eval", "-v", "dr", "-q", "--only", "loss"), ("compare", "-v", "dr", "-q")):
        name, *more = command
        err = run(name, path, *more, "--on-error", "skip", *flags).stderr.splitlines()
        assert [line.split(":")[2] for line in err[:kept]] == [str(at + 2) for at in range(kept)]
        rest = [f"grpo: … {27 - kept} more errors (--max-errors 0 shows all)"] if kept < 27 else []
        assert err[kept:-1] == rest
        assert "skipped 27" in err[-1]


def test_a_record_that_is_a_batch_of_its_own_has_its_own_statistics() -> None:
    """Beside records with other rewards, and more tokens than responses."""
    other = {**RECORD, "rewards": [7.0, -3.0], "log_probs_new": [[-1.0, -2.0], [-0.5, -4.0]]}
    kept = [key for key in RECORD if key not in ("advantages", "group_ids")]
    both = [{key: one[key] for key in kept} for one in (RECORD, other)]
    stages = {"advantage": "batch-whiten"}
    together = evaluate(both, "dr", stages=stages, batch="record").columns("response")
    for at, one in enumerate(both):
        alone = evaluate(one, "dr", stages=stages, batch="record").columns("response")
        part = together["advantage"][2 * at : 2 * at + 2]
        assert part.tolist() == alone["advantage"].tolist()
        assert part.all()


def test_a_record_without_tokens_is_not_on_policy() -> None:
    same = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1, 0], "mask": [[1], [1]]}
    empty = {**same, "mask": [[0], [0]]}
    records = [empty, same, empty, same, empty]
    moved = [{**record, "log_probs_old": [[-1.0], [-2.5]]} for record in records]
    still = {**same, "log_probs_old": same["log_probs_new"]}
    for given, count in ((records, 2), (moved, 0), ([*moved, still, *moved], 1)):
        assert evaluate(given, "dr").total["on_policy_records"] == count


OLD = "log_probs_old is missing: assuming on-policy (old = new), so every ratio is 1"
GIVEN = "advantages come from the records, not from their rewards (--advantage NAME computes them)"
NULLS = "reward functions that returned null for a response are ignored there, as in TRL"
LARGE = "a ratio exceeds the largest double and is null in JSON; use log_ratio"
NEW = {"log_probs_new": [[-1.0, -1.0], [-2.0]]}
BOTH = {**NEW, "log_probs_old": [[-1.0, -1.5], [-2.0]]}


@each(
    ("record", "told"),
    [
        ({**BOTH, "rewards": [1, 0]}, []),
        ({**NEW, "rewards": [1, 0]}, [OLD]),
        ({**NEW, "advantages": [1, -1]}, [OLD]),
        ({**BOTH, "advantages": [1, -1]}, []),
        ({**BOTH, "advantages": [1, -1], "rewards": [1, 0]}, [GIVEN]),
        ({**BOTH, "rewards": {"a": [1, None], "b": [0, 1]}}, [NULLS]),
        ({**BOTH, "rewards": {"a": [1, 0], "b": [0, 1]}}, []),
        ({**NEW, "log_probs_old": [[-1.0, -801.0], [-2.0]], "rewards": [1, 0]}, [LARGE]),
        ({"log_probs_new": [[], []], "log_probs_old": [[], []], "rewards": [1, 0]}, []),
    ],
)
def test_what_is_told_of_records(tmp_path: Path, record: Any, told: list[str]) -> None:
    path = write(tmp_path / "a.jsonl", [record])
    notes = run("eval", path, "-v", "dr").stderr.splitlines()  # those of totals are in the table
    assert notes == [f"grpo: note: {one}" for one in told]


def test_standard_input_without_a_record_is_called_as_it_is() -> None:
    for variant in ("dr", "lite-ppo"):
        result = run("eval", "-v", variant, stdin=" \n")
        assert result.stderr.splitlines()[-1].startswith("grpo: <stdin>: no records")


# ---- totals, each record being a part of its own -------------------------------------------------


def pair(new: float, old: float, **more: object) -> dict[str, Any]:
    """Two responses of one token."""
    columns = {"log_probs_new": [[new], [-1.0]], "log_probs_old": [[old], [-1.0]]}
    return {**columns, "advantages": [1.0, -1.0], **more}


def total(*records: dict[str, Any], variant: str = "grpo", **stages: str) -> dict[str, Any]:
    """The totals; they must not depend on the order of the records."""
    found = [evaluate([*order], variant, stages=stages).total for order in (records, records[::-1])]
    assert found[0] == found[1]
    return dict(found[0])


def test_the_range_of_the_ratio_is_over_all_records() -> None:
    found = total(pair(-1.0, -1.5), pair(-1.5, -1.0), pair(-1, -1), variant="dr")
    assert found["ratio_min"] == pytest.approx(0.6065306597126334, rel=1e-15)
    assert found["ratio_max"] == pytest.approx(1.6487212707001282, rel=1e-15)


def test_a_kl_that_one_record_cannot_tell_is_unknown() -> None:
    own = {"beta": 0.0}
    known = pair(-1.0, -1.5, log_probs_ref=[[-1.0], [-2.0]], hyperparameters=own)
    assert total(known, known)["kl"] > 0.0
    assert total(known, pair(-1.0, -1.5, hyperparameters=own), known)["kl"] is None
    found = total(pair(-1.0, -1.5), variant="dr")
    assert (found["kl"], found["entropy"]) == (0.0, None)


def test_denominators_that_count_nothing_or_differ() -> None:
    found = total(*[pair(-1.0, -1.1)] * 2, variant="dr", aggregate="sum")
    assert found["denominator"] == 1
    assert found["objective"] == pytest.approx(2 * (1.1051709180756477 - 1.0), rel=1e-14)
    lengths = [{"max_completion_length": length} for length in (4, 4, 5)]
    three = [pair(-1.0, -1.1, hyperparameters=own) for own in lengths]
    chosen = {"variant": "dr", "aggregate": "token-sum-norm"}
    assert total(*three[:2], **chosen)["denominator"] == 16  # 4 responses, 4 each
    assert total(*three, **chosen)["denominator"] is None


def test_records_with_betas_of_their_own() -> None:
    """An infinite KL has no part in J where β is 0."""
    far = {"log_probs_new": [[-1.0], [-801.0]], "log_probs_old": [[-1.0], [-801.0]]}
    reference = {"log_probs_ref": [[-2.0], [-1.0]], "advantages": [0.5, 0.5]}
    off = {**far, **reference, "hyperparameters": {"beta": 0.0}}
    near = pair(-1.0, -1.0, log_probs_ref=[[-2.0], [-1.0]], hyperparameters={"beta": 0.5})
    found = total(off, near)
    assert found["kl"] == float("inf")
    kl = 0.36787944117144233  # e^(−1) + 1 − 1, the one token that differs
    assert found["objective"] == pytest.approx((1.0 - 0.5 * kl) / 4, rel=1e-14)


OWN = {  # for verl/sapo, whose KL is a mean over tokens, unlike its policy term
    "log_probs_new": [[-1.0, -0.5], [-0.8]],
    "log_probs_old": [[-1.1, -0.4], [-1.0]],
    "log_probs_ref": [[-2.0, -0.9], [-0.3]],
    "advantages": [1.0, -1.0],
}


@each("count", [1, 3])
def test_gradient_where_the_kl_has_a_denominator_of_its_own(count: int) -> None:
    """‖g − β·g′‖ of the batch, from sums over records, against the tokens of one long record."""
    whole = {name: count * values for name, values in OWN.items()}
    tokens = [float(x) for row in evaluate(whole, "verl/sapo", beta=0.3).gradient for x in row]
    found = total(*[{**OWN, "hyperparameters": {"beta": 0.3}}] * count, variant="verl/sapo")
    norm = sum(x * x for x in tokens) ** 0.5
    assert found["gradient_norm"] == pytest.approx(norm, rel=1e-14)


def test_betas_where_the_kl_has_a_denominator_of_its_own() -> None:
    """Records alike with β 0.3 and 0.1 are together what they are with 0.2."""
    two = [{**OWN, "hyperparameters": {"beta": beta}} for beta in (0.3, 0.1)]
    wanted = evaluate(OWN, "verl/sapo", beta=0.2).objective
    assert total(*two, variant="verl/sapo")["objective"] == pytest.approx(wanted, rel=1e-14)
    found = evaluate(OWN, "verl/sapo", beta=0.3)
    kl = found.columns("response")["kl"].sum()
    assert kl == pytest.approx(found.columns("record")["kl"][0], rel=1e-14)


def test_record_by_record_the_totals_are_means_over_the_records() -> None:
    """The gradient's norm is that of all tokens, a record's own by the number of records."""
    other = {
        "log_probs_new": [[-0.3], [-0.2, -0.7, -0.1]],
        "log_probs_old": [[-0.4], [-0.3, -0.9, -0.1]],
        "advantages": [0.5, -2.0],
    }
    stages = {"aggregate": "token-mean"}
    found = evaluate([OWN, other], "dr", stages=stages, batch="record").total
    alone = [evaluate(one, "dr", stages=stages) for one in (OWN, other)]
    assert found["objective"] == pytest.approx(sum(one.objective for one in alone) / 2, rel=1e-14)
    squares = [float(x) ** 2 for one in alone for row in one.gradient for x in row]
    assert found["gradient_norm"] == pytest.approx(sum(squares) ** 0.5 / 2, rel=1e-14)
    assert found["denominator"] == 2
    assert found["denominator_of"] == "records, of means over tokens"


def test_a_batch_has_the_signature_and_denominator_of_its_own_records(tmp_path: Path) -> None:
    """Batches are evaluated together; what is equal in one of them is not mixed."""
    pairs = ((0.1, 5), (0.3, 6))
    own = [{"epsilon": one, "max_completion_length": length} for one, length in pairs]
    records = [{**RECORD, "step": at // 2, "hyperparameters": own[at // 2]} for at in range(4)]
    words = ("-v", "dr", "--aggregate", "token-sum-norm", "--level", "batch", "--batch", "step")
    both = answer("eval", write(tmp_path / "all.jsonl", records), *words, "-q")["batches"]
    for step, found in enumerate(both):
        path = write(tmp_path / "one.jsonl", records[2 * step : 2 * step + 2])
        assert [found] == answer("eval", path, *words, "-q")["batches"]
        assert "mixed" not in found["signature"]
        assert found["denominator"] == 4 * (5 + step)


@each("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_weights_of_rewards_that_some_records_lack_are_mixed(tmp_path: Path, order: Any) -> None:
    settings: list[dict[str, Any]] = [
        {"reward_weights": "1", "std_eps": 1e-4},
        {"reward_weights": "1", "std_eps": 1e-6},
        {},
    ]
    records = [{**RECORD, "advantages": None, "hyperparameters": settings[at]} for at in order]
    words = ("-v", "grpo")
    found = answer("eval", write(tmp_path / "all.jsonl", records), *words, "-q")
    assert "reward_weights=mixed" in found["signature"]
    for at, row in zip(order, found["records"], strict=True):
        alone = {**RECORD, "advantages": None, "hyperparameters": settings[at]}
        (one,) = answer("eval", write(tmp_path / "one.jsonl", [alone]), *words, "-q")["records"]
        assert row["loss"] == one["loss"]
