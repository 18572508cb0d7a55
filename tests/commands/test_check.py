"""Clean real dumps give no finding, and a fault of one record hides none of another."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import command
import numpy as np
import orjson
import pytest
from files import each, in_blocks, some

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


def padded(row: Row) -> None:
    width = max(map(len, row[NEW])) + 4
    for key in (NEW, OLD, "ref_per_token_logps"):
        if key in row:
            row[key] = [values + [0.0] * (width - len(values)) for values in row[key]]
    for key, pad in (("tokens", "<pad>"), ("completion_ids", 0)):
        row[key] = [values + [pad] * (width - len(values)) for values in row[key]]


def test_a_fault_of_one_record_hides_none_of_another():
    """Rules that explain a column stop where all records are explained, not where one is."""
    name = "trl-1.16.0-grpo.jsonl"
    rows = load(name)
    faults = {
        1: ("shifted", tokens_of(OLD, lambda v: [*v[1:], -3.0])),
        5: ("temperature", tokens_of(OLD, lambda v: [x * 0.8 for x in v])),
    }
    for at, (_, plant) in faults.items():
        plant(rows[at])
    codes = {one.record: one.code for one in new_in(rows, name)}
    assert codes == {rows[at]["id"]: code for at, (code, _) in faults.items()}


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


@pytest.mark.more
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


LIKELY = [*product([6, 40, 200], [0.0, 0.3, 0.8], [0.003, 0.05, 0.2])]


@each(("longest", "sure", "drift"), some(LIKELY, 7))
def test_confident_text_of_any_length_is_no_error(longest, sure, drift):
    draw = np.random.default_rng([longest, int(sure * 10), int(drift * 1000)])
    counts = check([sane(draw, longest, sure, drift) for _ in range(20)]).counts
    quiet = {"dead-group", "length-cap", "on-policy"}
    # The engine is a drift away from the old policy, which is a mismatch once it is large, and ten
    # times nearer to the new one; since these are numbers, not policies, weights have no mean of 1.
    large = {"rollout-mismatch", "mean-weight", "old-log-probs"}
    assert {*counts} <= quiet | (large if drift > 0.01 else set())


def test_on_policy_says_of_a_dead_record_that_there_is_no_gradient_either():
    """A record with one group that teaches keeps the usual advice."""
    four = [[-0.5], [-0.3], [-0.2], [-0.4]]
    groups = {"log_probs_new": four, "log_probs_old": four, "log_probs_ref": four}
    rows = [
        groups | {"group_ids": [0, 0, 1, 1], "rewards": rewards}
        for rewards in ([1] * 4, [1, 1, 1, 0])
    ]
    advice = [one.advice for one in check(rows).findings if one.code == "on-policy"]
    assert ["no policy gradient" in one for one in advice] == [True, False]
    assert "the gradient is informative" in advice[1]
    assert [one.response for one in check(rows).findings if one.code == "dead-group"][:2] == [0, 2]
    (one,) = (
        one.response for one in check([{**rows[0], "group_ids": [0] * 4}]).findings
        if one.code == "dead-group"
    )  # fmt: skip
    assert one is None  # it is the record's


def test_the_headline_has_the_worst_first():
    four = [[-0.5] * 9, [-0.3] * 9, [-0.2] * 9, [-0.4] * 9]
    dead = {"log_probs_new": four, "log_probs_old": four, "rewards": [1.0] * 4}
    bad = dead | {"log_probs_old": [[-30.0] * 9] * 4}
    found = check([dead, bad])
    first = found.headline.partition("; ")[2].split(", ")[0]
    assert found.findings[0].code != first
    assert first in {one.code for one in found.findings if one.severity == "error"}


# ---- one answer, however the input is cut --------------------------------------------------------


def made(draw: np.random.Generator, number: int) -> Row:
    """A record: most are small, some large; every fault that needs other records is among them."""
    size = 40 if number % 37 == 5 else int(draw.integers(1, 7))
    rows = 3 if number % 50 == 7 else 4
    old = [-draw.exponential(1.0, size) for _ in range(rows)]
    new = [np.minimum(row + draw.normal(0, 0.02, size), 0.0) for row in old]
    shift = 0.3 if 200 <= number < 270 else 0.0
    record: Row = {
        "log_probs_new": [row.tolist() for row in new],
        "log_probs_old": [row.tolist() for row in old],
        "log_probs_rollout": [np.minimum(row - shift, 0.0).tolist() for row in old],
        "rewards": draw.integers(0, 2, rows).astype(float).tolist(),
    }
    if number % 61 == 3:
        record["entropies"] = [[0.5] * size for _ in range(rows)]
    if number == 150:
        record["log_probs_old"][0][0] = 0.25
    return record


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    draw = np.random.default_rng(4)
    records = [made(draw, number) for number in range(400)]
    records[333] = records[42]
    path = tmp_path / "dump.jsonl"
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return str(path)


def answer(path: str, jobs: int = 1) -> str:
    return command.run("check", path, "--json", "--limit", 3, "--jobs", jobs).stdout


@pytest.mark.more
def test_the_answer_is_the_same_bytes_for_all_blocks_and_jobs(mixed, monkeypatch):
    whole = answer(mixed)
    found = orjson.loads(whole)
    assert found["records"] == 400
    assert {"duplicate", "uneven-groups", "probabilities"} <= {*found["counts"]}
    assert any(row["evidence"].get("records", 1) > 1 for row in found["findings"])
    for size in (3_000, 20_000, 77_777):
        in_blocks(monkeypatch, size)
        assert answer(mixed) == whole
    in_blocks(monkeypatch, 20_000)
    assert answer(mixed, jobs=2) == whole


def test_records_read_one_by_one_give_the_same_answer(mixed, tmp_path):
    """A null among their keys keeps records from being read at once."""
    rows = [orjson.loads(line) | {"note": None} for line in Path(mixed).read_bytes().splitlines()]
    path = tmp_path / "noted.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    assert answer(str(path)) == answer(mixed).replace("dump.jsonl", "noted.jsonl")


def test_codes_are_listed_with_severity_and_meaning(grpo):
    rows = command.answer("check", "--codes")["codes"]
    assert len({row["code"] for row in rows}) == len(rows) >= 34
    assert all(row["meaning"].endswith(".") and row["severity"] for row in rows)
    shown = grpo("check", "--codes")
    assert shown.exit_code == 0
    assert all(row["code"] in shown.stdout for row in rows)


# ---- records that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_length_is_the_limit_where_it_is_more_frequent_than_others(seed):
    """Of 320 responses of 7 to 17 tokens some groups have three of 17 by chance."""
    draw = np.random.default_rng(seed)

    def found(limit: int) -> bool:
        widths = np.minimum(draw.integers(7, 28, (40, 8)), limit)
        made = [{"log_probs_new": [[-1.0] * width for width in row]} for row in widths.tolist()]
        return any(one.code == "length-cap" for one in check(made).findings)

    assert (found(27), found(17)) == (False, True)


@pytest.mark.more
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_every_mask_of_two_short_responses_can_be_checked(value):
    """Also where no token counts, and where the first response has none."""
    masks = [list(mask) for width in range(3) for mask in product([0, 1], repeat=width)]
    for pair in product(masks, repeat=2):
        column = [[value] * len(mask) for mask in pair]
        names = ("log_probs_new", "log_probs_old", "log_probs_ref")
        row = {**dict.fromkeys(names, column), "mask": list(pair), "rewards": [0.0, 1.0]}
        ids = [[5] * len(mask) for mask in pair]
        for case in (row, row | {"token_ids": ids}):
            assert check([case]).fields()["tokens"] == sum(map(sum, pair))


@each(("ends", "found"), [([["<pad>"] * 2, ["<pad>"]], 1), ([["<pad>"], ["<pad>"]], 0)])
def test_a_word_for_padding_that_the_policy_writes_is_none(ends, found):
    """Two at the end of a response are counted padding, unless the word is elsewhere too."""
    draw = np.random.default_rng(4)
    tokens = [["a", "b", "c", *end] for end in ends] + [["b", "c", "a"]]
    row = {
        "rewards": [1.0, 0.0, 0.0],
        "tokens": tokens,
        "log_probs_new": [draw.uniform(-2, -1, len(one)).tolist() for one in tokens],
    }
    elsewhere = row | {"tokens": [*tokens[:2], ["b", "<pad>", "a"]]}
    codes = [[one.code for one in check([each]).findings] for each in (row, elsewhere)]
    assert [one.count("padding-id") for one in codes] == [found, 0]


def test_the_healthy_sample_is_healthy():
    """As README says; its vocabulary has <pad>, which the policy samples."""
    path = Path(__file__).parents[2] / "samples/run/healthy.jsonl.gz"
    assert command.run("check", path).stdout.startswith("no error or warning")
