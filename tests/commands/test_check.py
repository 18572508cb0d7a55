"""Text of any length gives no error, and the answer does not depend on how the input is cut."""

from __future__ import annotations

import json
import tracemalloc
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
Row = dict[str, Any]


@pytest.mark.more
def test_memory_stays_flat(tmp_path, monkeypatch):
    in_blocks(monkeypatch, 1 << 18)
    with (ROLLOUTS / "trl-1.16.0-grpo.jsonl").open() as file:
        row = json.loads(file.readline())
    names = ("per_token_logps", "old_per_token_logps", "advantages")
    line = json.dumps({name: row[name] for name in names}) + "\n"

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
