"""Each fault planted in clean real dumps: exactly that finding appears, and none on clean ones."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each, in_blocks

from grpo_cli import check

ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"
TRL = sorted(path.name for path in ROLLOUTS.glob("trl-*.jsonl"))
TRUTHFUL = {"on-policy", "length-cap"}

Row = dict[str, Any]


def load(name: str) -> list[Row]:
    return [json.loads(line) for line in (ROLLOUTS / name).read_text().splitlines()]


def found(rows: list[Row]) -> list[Any]:
    return [*check(rows, limit=0).findings]


@cache
def found_in(name: str) -> frozenset[tuple[str, Any]]:
    """What is found in a clean dump."""
    return frozenset((one.code, one.record) for one in found(load(name)))


def new_in(rows: list[Row], name: str) -> list[Any]:
    """What is found in the rows and was not in the clean dump."""
    return [one for one in found(rows) if (one.code, one.record) not in found_in(name)]


def kinds(findings: list[Any]) -> set[tuple[str, str]]:
    return {(one.code, one.severity) for one in findings}


@pytest.mark.parametrize("name", TRL)
def test_clean_trl_dumps_give_nothing_but_the_truth(name):
    answer = check(load(name))
    assert {*answer.counts} <= TRUTHFUL
    assert answer.severities["error"] == answer.severities["warning"] == 0
    # The first pass over a generation is on-policy, the second is not (two epochs).
    assert answer.counts["on-policy"] == 4


def test_clean_verl_cases_give_no_error():
    answer = check(load("verl-0.9.1-cases.jsonl"))
    assert answer.severities["error"] == 0
    groups = {"dead-group", "singleton-group", "uneven-groups"}
    assert {*answer.counts} <= groups | TRUTHFUL


# ---- faults of the log-probs ---------------------------------------------------------------------

OLD, NEW = "old_per_token_logps", "per_token_logps"


def tokens_of(key: str, change: Callable[[list[float]], list[float]]) -> Callable[[Row], None]:
    def plant(row: Row) -> None:
        row[key] = [change(values) for values in row[key]]

    return plant


def at_temperature(t: float) -> Callable[[Row], None]:
    """The new log-probs are of a softmax over 40 words, the old ones of it at a temperature."""

    def plant(row: Row) -> None:
        draw = np.random.default_rng(7)
        new, old = [], []
        for values in row[NEW]:
            logits = draw.normal(0.0, 2.5, (len(values), 40))
            taken = np.array([draw.choice(40, p=np.exp(z) / np.exp(z).sum()) for z in logits])
            for z_rows, into in ((logits, new), (logits / t, old)):
                log_p = z_rows - np.log(np.exp(z_rows).sum(axis=1, keepdims=True))
                into.append(log_p[np.arange(len(values)), taken].tolist())
        row[NEW], row[OLD] = new, old

    return plant


def padded(row: Row) -> None:
    width = max(map(len, row[NEW])) + 4
    for key in (NEW, OLD, "ref_per_token_logps"):
        if key in row:
            row[key] = [values + [0.0] * (width - len(values)) for values in row[key]]
    for key, pad in (("tokens", "<pad>"), ("completion_ids", 0)):
        row[key] = [values + [pad] * (width - len(values)) for values in row[key]]


def prompted(row: Row) -> None:
    prompt = [-3.1, -4.2, -2.2, -5.0, -1.7]
    for key in (NEW, OLD, "ref_per_token_logps"):
        if key in row:
            row[key] = [prompt + values for values in row[key]]
    row["tokens"] = [list("What?") + values for values in row["tokens"]]
    row["completion_ids"] = [[7, 3, 5, 9, 2, *values] for values in row["completion_ids"]]


def prompted_by_ids(row: Row) -> None:
    row["prompt_ids"] = [[11, 40 + at] for at in range(8)]
    for key in (NEW, OLD, "ref_per_token_logps"):
        if key in row:
            row[key] = [[-2.0 - at / 9, -1.0, *values] for at, values in enumerate(row[key])]
    row["tokens"] = [["a", str(at), *values] for at, values in enumerate(row["tokens"])]
    ids = enumerate(row["completion_ids"])
    row["completion_ids"] = [[11, 40 + at, *values] for at, values in ids]


def not_a_number(row: Row) -> None:
    row[OLD][2][1] = float("nan")


def zero_filled(row: Row) -> None:
    row[NEW][1][0], row[OLD][1][0] = -26.0, 0.0


def rolled_out(change: Callable[[list[float]], list[float]]) -> Callable[[Row], None]:
    def plant(row: Row) -> None:
        row["sampling_per_token_logps"] = [change(values) for values in row[OLD]]

    return plant


def noisy(values: list[float]) -> list[float]:
    draw = random.Random(len(values))
    return [min(value + draw.gauss(0.0, 0.5), 0.0) for value in values]


def lifted(values: list[float]) -> list[float]:
    return [min(value + 0.105, 0.0) for value in values]


LOG_PROB_FAULTS = {
    "shifted: next": ("shifted", "error", tokens_of(OLD, lambda v: [*v[1:], -3.0])),
    "shifted: previous": ("shifted", "error", tokens_of(OLD, lambda v: [-3.0, *v[:-1]])),
    "shifted: all but new": ("shifted", "error", tokens_of(NEW, lambda v: [*v[1:], -3.0])),
    "prompt: shared": ("prompt-included", "error", prompted),
    "prompt: prompt_ids": ("prompt-included", "error", prompted_by_ids),
    "padding": ("padding", "error", padded),
    "probabilities": ("probabilities", "error", tokens_of(OLD, lambda v: list(map(math.exp, v)))),
    "probabilities: −log p": ("probabilities", "error", tokens_of(NEW, lambda v: [-x for x in v])),
    "not finite": ("not-finite", "error", not_a_number),
    "base 2": ("log-base", "error", tokens_of(OLD, lambda v: [x / math.log(2) for x in v])),
    "base 10": ("log-base", "error", tokens_of(OLD, lambda v: [x / math.log(10) for x in v])),
    "base 10: new": ("log-base", "error", tokens_of(NEW, lambda v: [x / math.log(10) for x in v])),
    "top-p": ("constant-log-ratio", "warning", tokens_of(NEW, lambda v: [x - 0.105 for x in v])),
    "top-p: rollout": ("constant-log-ratio", "warning", rolled_out(lifted)),
    "temperature 0.6": ("temperature", "error", at_temperature(0.6)),
    "temperature 1.5": ("temperature", "error", at_temperature(1.5)),
    "temperature: scaled": ("temperature", "error", tokens_of(OLD, lambda v: [x * 0.8 for x in v])),
    "extreme ratio": ("extreme-ratio", "error", zero_filled),
    "rollout mismatch": ("rollout-mismatch", "warning", rolled_out(noisy)),
}


@each(
    ("name", "at", "fault"),
    [
        # an on-policy record, in which the fault is not drowned by training
        *((name, 1, fault) for name in ("grpo", "dapo") for fault in LOG_PROB_FAULTS),
        # one that training has moved
        *(("dr_grpo", 6, fault)
          for fault in ("shifted: next", "padding", "probabilities", "extreme ratio")),
    ],
)  # fmt: skip
def test_a_fault_of_the_log_probs_is_found_and_nothing_else(name, at, fault):
    code, severity, plant = LOG_PROB_FAULTS[fault]
    name = f"trl-1.16.0-{name}.jsonl"
    rows = load(name)
    plant(rows[at])
    new = new_in(rows, name)
    assert kinds(new) == {(code, severity)}
    assert {one.record for one in new} == {rows[at]["id"]}
    assert all(one.evidence and one.advice for one in new)


def test_a_fault_of_one_record_hides_none_of_another():
    """Rules that explain a column stop where all records are explained, not where one is."""
    name = "trl-1.16.0-grpo.jsonl"
    rows = load(name)
    planted = {rows[1]["id"]: "shifted: next", rows[5]["id"]: "temperature: scaled"}
    for row in rows:
        if row["id"] in planted:
            LOG_PROB_FAULTS[planted[row["id"]]][2](row)
    codes = {one.record: one.code for one in new_in(rows, name)}
    assert codes == {name: LOG_PROB_FAULTS[fault][0] for name, fault in planted.items()}


# ---- faults of rewards and groups ----------------------------------------------------------------


PLAIN = [1.0, 0.0, 0.5, 0.25, 0.0, 1.0, 0.75, 0.3]


@each(
    ("code", "severity", "columns"),
    [
        ("", "", {"rewards": PLAIN}),
        ("dead-group", "info", {"rewards": [0.5] * 8}),
        ("dead-group", "info", {"advantages": [0.0] * 8}),
        ("near-dead-group", "warning", {"rewards": [0.5, 0.500005] * 4}),
        ("near-dead-group", "warning", {"advantages": [3e-8, -3e-8] * 4}),
        ("uneven-groups", "info", {"rewards": PLAIN, "group_ids": [*"aaabbbbb"]}),
        ("singleton-group", "warning", {"rewards": PLAIN, "group_ids": [*"aaaaaaab"]}),
    ],
)
def test_a_fault_of_the_groups_is_found_and_nothing_else(code, severity, columns):
    rows = load("trl-1.16.0-dapo.jsonl")
    del rows[2]["advantages"]
    rows[2] |= columns
    new = new_in(rows, "trl-1.16.0-dapo.jsonl")
    # The other records are groups of 8, so a record with groups of 7 or of 3 and 5 is uneven.
    new = [one for one in new if one.code != "uneven-groups" or "uneven" in code]
    assert kinds(new) == ({(code, severity)} if code else set())


# ---- masks and lengths ---------------------------------------------------------------------------


def test_masked_padding_and_masked_nan_are_fine():
    rows = load("trl-1.16.0-dapo.jsonl")
    lengths = list(map(len, rows[1][NEW]))
    padded(rows[1])
    width = len(rows[1][NEW][0])
    rows[1]["completion_mask"] = [[1] * n + [0] * (width - n) for n in lengths]
    rows[1][NEW][0][-1] = float("nan")
    assert new_in(rows, "trl-1.16.0-dapo.jsonl") == []


# ---- many of them --------------------------------------------------------------------------------


def test_memory_stays_flat(tmp_path, monkeypatch):
    in_blocks(monkeypatch, 1 << 18)
    row = load("trl-1.16.0-grpo.jsonl")[0]
    line = json.dumps({key: row[key] for key in (NEW, OLD, "advantages")}) + "\n"

    def peak(megabytes: int) -> int:
        path = tmp_path / f"{megabytes}.jsonl"
        path.write_text(line * (megabytes * 1_000_000 // len(line)))
        tracemalloc.start()
        check(str(path))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(1)  # what is made once
    assert peak(4) < 1.5 * peak(2)


# ---- no false alarms -----------------------------------------------------------------------------


def sane(draw: np.random.Generator, longest: int, sure: float, drift: float) -> Row:
    """A group as confident policies write it: many exact zeros, at the end above all."""
    row: Row = {name: [] for name in ("new", "old", "ref", "rollout")}
    for _ in range(8):
        count = int(draw.integers(1, longest))
        new = -draw.exponential(1.5, count) * (draw.random(count) > sure)
        moves = np.sqrt(np.abs(new)) * draw.normal(0.0, 1.0, (3, count))
        scaled = zip((1, 3, 0.1), moves * drift, strict=True)
        columns = [new, *(new + scale * one for scale, one in scaled)]
        tail = int(draw.integers(0, 4)) if draw.random() < 0.7 else 0
        for column in columns:
            column[max(count - tail, 0) :] = 0.0
        for name, column in zip(row, columns, strict=True):
            row[name].append(np.float32(np.minimum(column, 0.0)).astype(float).tolist())
    found = {f"log_probs_{name}": values for name, values in row.items()}
    return found | {"rewards": draw.integers(0, 2, 8).tolist()}


@each("longest", [6, 40, 200])
@each("sure", [0.0, 0.3, 0.8])
@each("drift", [0.003, 0.05, 0.2])
def test_confident_text_of_any_length_is_no_error(longest, sure, drift):
    draw = np.random.default_rng([longest, int(sure * 10), int(drift * 1000)])
    counts = check([sane(draw, longest, sure, drift) for _ in range(20)]).counts
    quiet = {"dead-group", "length-cap", "on-policy"}
    # The engine is a drift away from the old policy, which is a mismatch once it is large; and
    # since these are numbers, not policies, their weights have no mean of 1.
    assert {*counts} <= quiet | ({"rollout-mismatch", "mean-weight"} if drift > 0.01 else set())


def test_on_policy_says_of_a_dead_record_that_there_is_no_gradient_either():
    """A record with one group that teaches keeps the usual advice."""
    four = [[-0.5], [-0.3], [-0.2], [-0.4]]
    groups = {"log_probs_new": four, "log_probs_old": four, "log_probs_ref": four}
    rows = [
        groups | {"group_ids": [0, 0, 1, 1], "rewards": rewards}
        for rewards in ([1] * 4, [1, 1, 1, 0])
    ]
    advice = [one.advice for one in check(rows).findings if one.code == "on-policy"]
    assert ["has no policy gradient" in one for one in advice] == [True, False]
    assert "the gradient does" in advice[1]


@each(
    ("rewards", "flags", "code"),
    [
        ([1.0], [], 0),
        ([1.0], ["--fail-on", "warning"], 1),
        ([1.0, 0.0], ["--fail-on", "warning"], 0),
        ([1.0, 0.0], ["--fail-on", "error"], 0),
    ],
)
def test_fail_on_says_from_which_severity_on_the_exit_code_is_1(grpo, dump, rewards, flags, code):
    record = {"log_probs_new": [[-0.5, -1.0]] * len(rewards), "rewards": rewards}
    path = dump(json.dumps(record))
    assert grpo("check", str(path), *flags).exit_code == code


@each(
    ("prompts", "tokens"),
    [
        ([[9] * 3000 + [5, 6], [9] * 3000 + [5, 7]], None),  # padded with what each begins with
        ([[5, 9], [5, 8]], 2),
        ([[5, 6], None, 7, "text"], None),
    ],
)
def test_prompts_by_group_whose_rows_are_in_any_order_are_compared(prompts, tokens):
    rows = [[9, 5, 6, 1], [5, 8, 3, 2], [9, 4, 4, 4], [9, 1, 2, 3]]
    columns = {"log_probs_new": [[-0.5, -1.0, -1.5, -2.0]] * 4, "token_ids": rows}
    record = columns | {"prompt_ids": prompts, "group_ids": ["a", "b", "a", "a"]}
    found = [one.evidence for one in check([record]).findings if one.code == "prompt-included"]
    assert [each["tokens"] for each in found] == ([tokens] if tokens else [])


def test_advantages_that_are_whitened_over_the_batch_are_centred():
    """One group of the three has the std of the batch; with a constant added each has its own."""
    rewards = [[1.0] * ones + [0.0] * (8 - ones) for ones in (2, 4, 3)]
    rows = np.array(rewards)
    whitened = (rows - rows.mean()) / rows[0].std(ddof=1)
    own = (rows - rows.mean(1, keepdims=True)) / rows.std(1, ddof=1, keepdims=True)
    one_of_three = own + 0.3 * (np.arange(3) == 1)[:, None]
    for advantages, found in ((whitened, 0), (own + 0.3, 3), (one_of_three, 1)):
        records = [
            {"log_probs": [[-1.0]] * 8, "rewards": one, "advantages": each.tolist()}
            for one, each in zip(rewards, advantages, strict=True)
        ]
        checked = check(records)
        assert checked.counts.get("advantages", 0) == found
        assert repr(checked).startswith("Checked(ok: ")


def test_a_bad_value_hides_nothing_of_other_columns() -> None:
    row = {"rewards": [1, 0], "log_probs_new": [[-0.1, 0.5], [-0.4, -0.2]], "prompt": ["a", "b"]}
    found = check([row])
    assert {*found.counts} >= {"probabilities", "mixed-prompts"}
    assert found.not_compared == 1
