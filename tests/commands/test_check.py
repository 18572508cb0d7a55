"""Each fault planted in clean real dumps: exactly that finding appears, and none on clean ones."""

from __future__ import annotations

import copy
import json
import math
import random
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked import checked, rows_of
from files import each

from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.run import Check
from grpo_cli.records import Raw, cut, raws

ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"
TRL = sorted(path.name for path in ROLLOUTS.glob("trl-*.jsonl"))
TRUTHFUL = {"on-policy", "length-cap"}

Row = dict[str, Any]


def load(name: str) -> list[Row]:
    return [raw.value for block in cut(str(ROLLOUTS / name)) for raw in raws(block)]


def found(rows: list[Row], limit: int = 0) -> Findings:
    return looked(rows, limit).findings


def _size(row: Row) -> int:
    return 20 * sum(map(len, row.get(NEW, [])))


def looked(rows: Iterable[Row], limit: int = 0) -> Check:
    """What ``grpo check`` makes of rows that are the lines of one file."""
    made = [Raw(row, "dump", at + 1, "", _size(row)) for at, row in enumerate(rows)]
    return checked([made], limit)


def new_in(rows: list[Row], name: str) -> list[dict[str, Any]]:
    """What is found in the rows and was not in the clean dump."""
    clean = {(row["code"], row["record"]) for row in rows_of(found(load(name)))}
    return [row for row in rows_of(found(rows)) if (row["code"], row["record"]) not in clean]


@pytest.mark.parametrize("name", TRL)
def test_clean_trl_dumps_give_nothing_but_the_truth(name):
    findings = found(load(name))
    assert set(findings.codes) <= TRUTHFUL
    assert findings.severities["error"] == findings.severities["warning"] == 0
    # The first pass over a generation is on-policy, the second is not (two epochs).
    assert findings.codes["on-policy"] == 4


def test_clean_verl_cases_give_no_error():
    findings = found(load("verl-0.9.1-cases.jsonl"))
    assert findings.severities["error"] == 0
    assert set(findings.codes) <= {
        "dead-group",
        "singleton-group",
        "uneven-groups",
        "length-cap",
        "on-policy",
    }


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
    row["completion_ids"] = [
        [11, 40 + at, *values] for at, values in enumerate(row["completion_ids"])
    ]


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
    "top-p: rollout": (
        "constant-log-ratio",
        "warning",
        rolled_out(lambda v: [min(x + 0.105, 0.0) for x in v]),
    ),
    "temperature 0.6": ("temperature", "error", at_temperature(0.6)),
    "temperature 1.5": ("temperature", "error", at_temperature(1.5)),
    "temperature: scaled": ("temperature", "error", tokens_of(OLD, lambda v: [x * 0.8 for x in v])),
    "extreme ratio": ("extreme-ratio", "error", zero_filled),
    "rollout mismatch": ("rollout-mismatch", "warning", rolled_out(noisy)),
}


@each("name", ["trl-1.16.0-grpo.jsonl", "trl-1.16.0-dapo.jsonl"])
@each("fault", LOG_PROB_FAULTS)
def test_a_fault_of_the_log_probs_is_found_and_nothing_else(name, fault):
    code, severity, plant = LOG_PROB_FAULTS[fault]
    rows = copy.deepcopy(load(name))
    plant(rows[1])  # an on-policy record, in which the fault is not drowned by training
    new = new_in(rows, name)
    assert {(row["code"], row["severity"]) for row in new} == {(code, severity)}
    assert {row["record"] for row in new} == {rows[1]["id"]}
    assert all(row["line"] == 2 and row["evidence"] and row["advice"] for row in new)


@pytest.mark.parametrize(("chance", "codes"), [(1.1e-9, []), (0.9e-9, ["prompt-included"])])
def test_what_all_responses_begin_with_by_chance(chance, codes):
    """Two of three responses begin as the other does, each by e^(two tokens' log-probs)."""
    rows = [[math.log(chance) / 4, math.log(chance) / 4, -1.0 - at] for at in range(3)]
    ids = [[5, 6, 7 + at] for at in range(3)]
    findings = rows_of(found([{NEW: rows, "token_ids": ids, "rewards": [1, 0, 1]}]))
    assert [one["code"] for one in findings if one["code"] == "prompt-included"] == codes


@pytest.mark.parametrize("fault", ["shifted: next", "padding", "probabilities", "extreme ratio"])
def test_the_same_in_a_record_that_training_has_moved(fault):
    code, severity, plant = LOG_PROB_FAULTS[fault]
    rows = copy.deepcopy(load("trl-1.16.0-dr_grpo.jsonl"))
    plant(rows[6])
    new = new_in(rows, "trl-1.16.0-dr_grpo.jsonl")
    assert {(row["code"], row["severity"]) for row in new} == {(code, severity)}


def test_a_fault_of_one_record_hides_none_of_another():
    """Rules that explain a column stop where all records are explained, not where one is."""
    name = "trl-1.16.0-grpo.jsonl"
    rows = copy.deepcopy(load(name))
    planted = {rows[1]["id"]: "shifted: next", rows[5]["id"]: "temperature: scaled"}
    for row in rows:
        if row["id"] in planted:
            LOG_PROB_FAULTS[planted[row["id"]]][2](row)
    told = {row["record"]: row["code"] for row in new_in(rows, name)}
    assert told == {name: LOG_PROB_FAULTS[fault][0] for name, fault in planted.items()}


def test_one_shifted_response_is_found_in_its_place():
    rows = copy.deepcopy(load("trl-1.16.0-gspo.jsonl"))
    values = rows[0][OLD][0]
    assert len(values) == 32
    rows[0][OLD][0] = [*values[1:], -2.0]
    (row,) = new_in(rows, "trl-1.16.0-gspo.jsonl")
    assert (row["code"], row["record"], row["response"]) == ("shifted", rows[0]["id"], 0)


def test_short_records_are_compared_together():
    draw = random.Random(3)
    rows: list[Row] = []
    for _ in range(12):
        new = [[-draw.expovariate(0.5) for _ in range(4)] for _ in range(2)]
        old = [[*values[1:], -1.0] for values in new]
        rows.append({"log_probs_new": new, "log_probs_old": old, "advantages": [1.0, -1.0]})
    assert set(found(rows).codes) == {"shifted"}
    assert found(rows[:1]).codes == {}  # 8 tokens prove nothing


def test_entropies_tell_the_base_of_all_columns():
    row = copy.deepcopy(load("trl-1.16.0-grpo.jsonl")[4])
    draw = np.random.default_rng(1)
    row[NEW], row[OLD], row["entropies"] = [], [], []
    for _ in range(8):
        logits = draw.normal(0.0, 1.5, (32, 30))
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        taken = [draw.choice(30, p=np.exp(one) / np.exp(one).sum()) for one in log_p]
        row[NEW].append((log_p[np.arange(32), taken] / math.log(10)).tolist())
        row["entropies"].append((-(np.exp(log_p) * log_p).sum(axis=1)).tolist())
    row.pop("ref_per_token_logps")
    row["tokens"], row["completion_ids"], row[OLD] = None, None, None
    assert set(found([row]).codes) == {"log-base", "on-policy", "length-cap"}
    row[NEW] = [[value * math.log(10) for value in values] for values in row[NEW]]
    assert "log-base" not in found([row]).codes


# ---- faults of rewards and groups ----------------------------------------------------------------


def rewarded(row: Row, rewards: list[float]) -> None:
    del row["advantages"]
    row["rewards"] = rewards


PLAIN = [1.0, 0.0, 0.5, 0.25, 0.0, 1.0, 0.75, 0.3]

GROUP_FAULTS: dict[str, tuple[set[str], str, Callable[[Row], None]]] = {
    "none": (set(), "", lambda row: rewarded(row, PLAIN)),
    "dead": ({"dead-group"}, "info", lambda row: rewarded(row, [0.5] * 8)),
    "dead advantages": (
        {"dead-group"},
        "info",
        lambda row: row.update(advantages=[0.0] * 8),
    ),
    "near dead": (
        {"near-dead-group"},
        "warning",
        lambda row: rewarded(row, [0.5, 0.500005] * 4),
    ),
    "near dead advantages": (
        {"near-dead-group"},
        "warning",
        lambda row: row.update(advantages=[3e-8, -3e-8] * 4),
    ),
    "noise": (
        {"reward-noise"},
        "warning",
        lambda row: rewarded(row, [*PLAIN[:7], 0.25000002]),
    ),
    "uneven": (
        {"uneven-groups"},
        "info",
        lambda row: rewarded(row, PLAIN) or row.update(group_ids=list("aaabbbbb")),
    ),
    "singleton": (
        {"singleton-group"},
        "warning",
        lambda row: rewarded(row, PLAIN) or row.update(group_ids=list("aaaaaaab")),
    ),
}


@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_fault_of_the_groups_is_found_and_nothing_else(fault):
    codes, severity, plant = GROUP_FAULTS[fault]
    rows = copy.deepcopy(load("trl-1.16.0-dapo.jsonl"))
    plant(rows[2])
    new = new_in(rows, "trl-1.16.0-dapo.jsonl")
    # The other records are groups of 8, so a record with groups of 7 or of 3 and 5 is uneven.
    new = [row for row in new if row["code"] != "uneven-groups" or "uneven" in fault]
    assert {row["code"] for row in new} == codes
    assert {row["severity"] for row in new} <= {severity}


def test_groups_that_differ_between_records_are_uneven():
    rows = [
        {
            "log_probs_new": [[-1.0 - at / 7, -0.5]] * 1 + [[-2.0, -0.1 - at / 9]] * (size - 1),
            "log_probs_old": [[-1.1, -0.6]] * size,
            "rewards": [1.0] + [0.0] * (size - 1),
        }
        for at, size in enumerate([4, 4, 3, 4])
    ]
    (row,) = [one for one in rows_of(found(rows)) if one["code"] == "uneven-groups"]
    assert row["record"] == 2
    assert row["evidence"]["sizes"] == {"3": 1, "4": 3}


@pytest.mark.parametrize(("size", "bound"), [(4, 14.0), (100, 50.0)])
@pytest.mark.parametrize("factor", [0.99, -1.01])
def test_an_advantage_is_too_large_from_five_times_the_root_of_its_group(size, bound, factor):
    """Or five times 2.8, or the range of the rewards: no group of G gives more than (G − 1)/√G."""
    row = {
        "log_probs_new": [[-0.5 - at / size] for at in range(size)],
        "log_probs_old": [[-0.6 - at / size] for at in range(size)],
        "rewards": [1.0] + [0.0] * (size - 1),
        "advantages": [-0.1] * (size - 1) + [factor * bound],
    }
    told = [one for one in rows_of(found([row])) if one["code"] == "advantage-scale"]
    assert len(told) == (abs(factor) > 1.0)
    if told:
        assert told[0]["evidence"] == {"advantage": factor * bound, "bound": bound}
        assert told[0]["response"] == size - 1


def test_where_the_trained_ids_leave_the_sampled_ones_is_told():
    row = {
        "log_probs_new": [[-0.5, -0.7, -0.9], [-0.4, -0.6, -0.8], [-1.0, -0.1, -0.3]],
        "rewards": [1.0, 0.0, 0.5],
        "token_ids": [[5, 6, 7], [5, 6, 8], [4, 9, 2]],
        "sampled_ids": [[5, 6, 7], [5, 6, 9], [3, 9, 2]],
    }
    (told,) = [one for one in rows_of(found([row])) if one["code"] == "retokenised"]
    assert (told["response"], told["token"]) == (1, 2)
    assert told["evidence"] == {"responses": 2, "of": 3, "key": "sampled_ids"}
    assert "of 2 of 3 responses" in told["message"]
    assert "here from token 2 on" in told["message"]


def test_a_copied_row_and_a_copied_record_are_duplicates():
    name = "trl-1.16.0-dapo.jsonl"
    rows = copy.deepcopy(load(name))
    assert len(rows[1][NEW][1]) == 32
    for key in (NEW, OLD, "tokens", "completion_ids"):
        rows[1][key][5] = list(rows[1][key][1])
    (row,) = new_in(rows, name)
    assert (row["code"], row["record"], row["response"]) == ("duplicate", rows[1]["id"], 5)
    rows = copy.deepcopy(load(name))
    rows.append(rows[3] | {"id": "again"})
    assert {row["code"] for row in new_in(rows, name)} >= {"duplicate"}
    assert found(rows).codes["duplicate"] == 1


@pytest.mark.parametrize(("log_prob", "told"), [(-13.8, False), (-13.82, True)])
def test_equal_rows_are_copies_where_chance_is_below_one_in_a_million(log_prob, told):
    """ln 1e-6 is −13.8155."""
    rows = [[log_prob / 2, log_prob / 2], [-3.0, -1.0], [log_prob / 2, log_prob / 2]]
    row = {"log_probs_new": rows, "log_probs_old": rows, "rewards": [1.0, 0.5, 0.0]}
    findings = [one for one in rows_of(found([row])) if one["code"] == "duplicate"]
    assert [one["response"] for one in findings] == [2] * told
    assert [one["evidence"] for one in findings] == [
        {"responses": 1, "of": 3, "first": "record 0, response 0"}
    ] * told


def test_sure_short_answers_may_be_equal():
    row = {
        "log_probs_new": [[-0.01, -0.02]] * 4,
        "log_probs_old": [[-0.011, -0.02]] * 4,
        "advantages": [1.0, -1.0, 1.0, -1.0],
    }
    assert found([row]).codes == {}


def test_a_group_torn_over_records_is_told():
    rows = [
        {
            "log_probs_new": [[-1.0, -2.0 - at]],
            "log_probs_old": [[-1.1, -2.0 - at]],
            "rewards": [float(at)],
            "group_ids": ["q7"],
        }
        for at in range(2)
    ]
    findings = found(rows)
    assert set(findings.codes) == {"torn-group"}
    (row,) = rows_of(findings)
    assert row["severity"] == "warning"
    assert "--group-by group_ids" in row["advice"]


# ---- masks and lengths ---------------------------------------------------------------------------


def masked(holes: bool) -> Callable[[Row], None]:
    def plant(row: Row) -> None:
        row["completion_mask"] = [[1] * len(values) for values in row[NEW]]
        if holes:
            row["completion_mask"][0][3] = 0
        else:
            row["completion_mask"][0] = [0] * len(row[NEW][0])

    return plant


@pytest.mark.parametrize("holes", [True, False])
def test_mask_with_holes_or_all_zero(holes):
    rows = copy.deepcopy(load("trl-1.16.0-grpo.jsonl"))
    masked(holes)(rows[3])
    new = new_in(rows, "trl-1.16.0-grpo.jsonl")
    assert [(row["code"], row["severity"], row["response"]) for row in new] == [
        ("mask", "info" if holes else "warning", 0)
    ]


def test_a_record_that_is_masked_whole_is_an_error():
    rows = copy.deepcopy(load("trl-1.16.0-grpo.jsonl"))
    rows[3]["completion_mask"] = [[0] * len(values) for values in rows[3][NEW]]
    new = new_in(rows, "trl-1.16.0-grpo.jsonl")
    assert [(row["code"], row["severity"]) for row in new] == [("mask", "error")]


def test_masked_padding_and_masked_nan_are_fine():
    rows = copy.deepcopy(load("trl-1.16.0-dapo.jsonl"))
    lengths = list(map(len, rows[1][NEW]))
    padded(rows[1])
    width = len(rows[1][NEW][0])
    rows[1]["completion_mask"] = [[1] * n + [0] * (width - n) for n in lengths]
    rows[1][NEW][0][-1] = float("nan")
    assert new_in(rows, "trl-1.16.0-dapo.jsonl") == []


def test_a_few_sure_words_at_the_end_are_doubtful_not_wrong():
    rows = copy.deepcopy(load("trl-1.16.0-dapo.jsonl"))
    for key in (NEW, OLD):
        rows[1][key] = [values + [0.0] * 5 for values in rows[1][key]]
    for key, words in (("tokens", list("</a>.")), ("completion_ids", [1, 2, 3, 4, 5])):
        rows[1][key] = [values + words for values in rows[1][key]]
    assert new_in(rows, "trl-1.16.0-dapo.jsonl") == []
    del rows[1]["tokens"], rows[1]["completion_ids"]
    new = new_in(rows, "trl-1.16.0-dapo.jsonl")
    assert [(row["code"], row["severity"]) for row in new] == [("padding", "warning")]
    for key in (NEW, OLD):
        rows[1][key] = [values + [0.0] * 5 for values in rows[1][key]]
    new = new_in(rows, "trl-1.16.0-dapo.jsonl")
    assert [(row["code"], row["severity"]) for row in new] == [("padding", "error")]


def test_rewards_that_differ_are_not_near_dead():
    rows = copy.deepcopy(load("trl-1.16.0-dapo.jsonl"))
    rewarded(rows[2], [0.5, 0.5001] * 4)
    assert new_in(rows, "trl-1.16.0-dapo.jsonl") == []


def test_a_length_cap_is_seen_without_its_name():
    rows = copy.deepcopy(load("trl-1.16.0-dapo.jsonl"))
    for row in rows:
        del row["hyperparameters"]["max_completion_length"]
    # In the other two all 8 responses have 32 tokens: a cap, or texts of a fixed length.
    assert found(rows).codes["length-cap"] == 6
    lengths = {len(values) for values in rows[0][NEW]}
    assert max(lengths) == 32
    row = rows[0]
    for key in (NEW, OLD, "tokens", "completion_ids"):
        row[key] = [values[: 5 + at] for at, values in enumerate(row[key])]
    assert "length-cap" not in found([row]).codes


# ---- many of them --------------------------------------------------------------------------------


def test_findings_of_one_kind_are_summed_up():
    rows = copy.deepcopy(load("trl-1.16.0-dapo.jsonl"))
    findings = found(rows, limit=3)
    assert findings.codes["length-cap"] == 8
    assert len([row for row in rows_of(findings) if row["code"] == "length-cap"]) == 3
    assert findings.more == {"length-cap": 5, "on-policy": 1}


def test_memory_stays_flat():
    row = load("trl-1.16.0-grpo.jsonl")[0]

    def peak(count: int) -> int:
        tracemalloc.start()
        looked((row for _ in range(count)), 3)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)  # what is made once
    # The least of a few, since another thread's memory (a test runner's) is counted too.
    fewer, more = (min(peak(count) for _ in range(3)) for count in (50, 150))
    assert more < 1.5 * fewer + 100_000


# ---- no false alarms -----------------------------------------------------------------------------


def sane(draw: np.random.Generator, longest: int, sure: float, drift: float) -> Row:
    """A group as confident policies write it: many exact zeros, at the end above all."""
    row: Row = {name: [] for name in ("new", "old", "ref", "rollout")}
    for _ in range(8):
        count = int(draw.integers(1, longest))
        new = -draw.exponential(1.5, count) * (draw.random(count) > sure)
        moves = np.sqrt(np.abs(new)) * draw.normal(0.0, 1.0, (3, count))
        columns = [
            new,
            *(new + scale * one for scale, one in zip((1, 3, 0.1), moves * drift, strict=True)),
        ]
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
    findings = found([sane(draw, longest, sure, drift) for _ in range(40)])
    quiet = {"dead-group", "length-cap", "on-policy"}
    # The engine is a drift away from the old policy, which is a mismatch once it is large; and
    # since these are numbers, not policies, their weights have no mean of 1.
    assert set(findings.codes) <= quiet | (
        {"rollout-mismatch", "mean-weight"} if drift > 0.01 else set()
    )


def test_on_policy_says_of_a_dead_record_that_there_is_no_gradient_either(grpo, dump):
    """A record with one group that teaches keeps the usual advice."""
    four = [[-0.5], [-0.3], [-0.2], [-0.4]]
    groups = {"log_probs_new": four, "log_probs_old": four, "log_probs_ref": four}
    rows = [
        groups | {"group_ids": [0, 0, 1, 1], "rewards": rewards}
        for rewards in ([1] * 4, [1, 1, 1, 0])
    ]
    document = json.loads(grpo("check", str(dump(*rows)), "--json").stdout)
    advice = [one["advice"] for one in document["findings"] if one["code"] == "on-policy"]
    assert ["no policy gradient either" in one for one in advice] == [True, False]
    assert "its gradient does" in advice[1]


def engines(up: float, down: float) -> Findings:
    """Tokens of which half, by chance, are so many times as likely for the trainer."""
    draw = random.Random(7)
    engine = [-draw.uniform(1.2, 6.0) for _ in range(400)]
    changes = [math.log(up), math.log(down)] * 200
    draw.shuffle(changes)
    trainer = [x + change for x, change in zip(engine, changes, strict=True)]
    rows = {"log_probs_new": [trainer], "log_probs_rollout": [engine], "advantages": [1.0]}
    return found([rows])


@pytest.mark.parametrize(("factor", "told"), [(1.0499, False), (1.0501, True)])
def test_the_bound_on_the_mismatch_is_nemo_rls(factor, told):
    """NeMo-RL, docs/guides/dtensor-tp-accuracy.md: a token_mult_prob_error above 1.05."""
    codes = {row["code"] for row in rows_of(engines(factor, 1 / factor))}
    assert ("rollout-mismatch" in codes) == told


@pytest.mark.parametrize(("factor", "told"), [(0.51, False), (0.49, True)])
def test_the_bounds_on_the_weights_are_verls(factor, told):
    """verl, docs/algo/rollout_corr.md: a mean weight of 0.5 and more."""
    (row,) = [
        row
        for row in rows_of(engines(1.3 * factor, 0.7 * factor))
        if row["code"] == "rollout-mismatch"
    ]
    assert ("beyond what verl corrects" in row["message"]) == told


ENDED = "end-of-text"


def finished(words: list[list[int]], masks: list[list[int]]) -> list[Row]:
    """A record of responses of such ids and masks."""
    draw = random.Random(7)
    log_probs = [[-draw.expovariate(2.0) for _ in row] for row in words]
    rewards = [float(at % 2) for at in range(len(words))]
    return [{NEW: log_probs, "rewards": rewards, "token_ids": words, "loss_mask": masks}]


@pytest.mark.parametrize(
    ("what", "words", "taken", "is_end"),
    [
        ("one last token", [[5, 6, 2], [7, 8, 9, 2], [8, 2], [9, 9, 9]], [1, 1, 1, 0], True),
        ("one before padding", [[5, 2, 0, 0], [7, 8, 2, 0], [8, 9, 9, 2]], [3, 2, 1], True),
        (
            "one that counts elsewhere",
            [[5, 6, 2], [7, 8, 9, 2], [8, 2], [9, 2]],
            [1, 1, 1, 0],
            True,
        ),
        ("padding", [[5, 0, 0, 0], [7, 8, 0, 0], [8, 9, 9, 0], [9, 9, 9, 9]], [3, 2, 1, 0], False),
        ("one pad", [[5, 6, 2], [7, 8, 2], [8, 9, 2], [9, 9, 9]], [1, 1, 1, 0], False),
        ("a line's end behind one word", [[5, 4, 2], [7, 8, 4, 2], [4, 2], [9, 9]], [1] * 3, False),
        ("a word", [[5, 2, 2], [7, 8, 9, 2], [8, 2], [9, 9, 9]], [1, 1, 1, 0], False),
        ("several words", [[5, 6, 2], [7, 8, 9, 3], [8, 2], [9, 9, 9]], [1, 1, 1, 0], False),
        ("two responses", [[5, 6, 2], [7, 8, 9, 2], [8, 1], [9, 9, 9]], [1, 1, 0, 0], False),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_an_end_of_text_of_an_unknown_vocabulary(what, words, taken, is_end):
    taken = [*taken, *[0] * (len(words) - len(taken))]
    masks = [[1] * (len(row) - last) + [0] * last for row, last in zip(words, taken, strict=True)]
    codes = found(finished(words, masks)).codes
    assert (ENDED in codes) is is_end, what
