"""One answer, however the input is cut: by jobs, blocks, and records read one by one or at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import command
import numpy as np
import orjson
import pytest
from files import each, in_blocks

Row = dict[str, Any]


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
def dump(tmp_path: Path) -> str:
    draw = np.random.default_rng(4)
    records = [made(draw, number) for number in range(400)]
    records[333] = records[42]
    path = tmp_path / "dump.jsonl"
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return str(path)


def answer(path: str, jobs: int = 1) -> str:
    return command.run("check", path, "--json", "--limit", 3, "--jobs", jobs).stdout


def test_the_answer_is_the_same_bytes_for_all_blocks_and_jobs(dump, monkeypatch):
    whole = answer(dump)
    found = orjson.loads(whole)
    assert found["records"] == 400
    assert {"duplicate", "uneven-groups", "probabilities"} <= {*found["counts"]}
    assert any(row["evidence"].get("records", 1) > 1 for row in found["findings"])
    for size in (3_000, 20_000, 77_777):
        in_blocks(monkeypatch, size)
        assert answer(dump) == whole
    in_blocks(monkeypatch, 20_000)
    assert answer(dump, jobs=2) == whole


def test_records_read_one_by_one_give_the_same_answer(dump, tmp_path):
    """A null among their keys keeps records from being read at once."""
    rows = [orjson.loads(line) | {"note": None} for line in Path(dump).read_bytes().splitlines()]
    path = tmp_path / "noted.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    assert answer(str(path)) == answer(dump).replace("dump.jsonl", "noted.jsonl")


def test_codes_are_listed_with_severity_and_meaning(grpo):
    rows = command.answer("check", "--codes")["codes"]
    assert len({row["code"] for row in rows}) == len(rows) >= 34
    assert all(row["meaning"].endswith(".") and row["severity"] for row in rows)
    shown = grpo("check", "--codes")
    assert shown.exit_code == 0
    assert all(row["code"] in shown.stdout for row in rows)


@each("wrong", [math.nan, math.inf, -math.inf, 1e200])
@each("name", ["rewards", "advantages"])
@each("more", [{}, {"entropies": [[0.5], [0.5]]}, {"values": [[0.5], [0.5]]}, {"note": None}])
def test_scores_that_are_no_numbers_are_a_finding_in_all_records_alike(tmp_path, wrong, name, more):
    rows = {"log_probs_new": [[-1.0], [-1.0]], "log_probs_old": [[-1.1], [-0.9]]} | more
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(rows | {name: [1.0, wrong]}) + "\n")
    document = command.answer("check", path)
    (found,) = [one for one in document["findings"] if one["severity"] == "error"]
    assert not document["ok"]
    assert (found["code"], found["record"], found["response"]) == ("bad-score", 0, 1)
    assert found["message"] == f"{name} is {wrong:g} at 1 of 2 responses"


def test_tokens_that_are_nested_in_several_ways(grpo, tmp_path):
    deep = {"log_probs_new": [[[-1.0, -2.0]], [[-1.0]]], "tokens": [[["a", "b"]], [["c"]]]}
    flat = {"log_probs_new": [[-1.0, -2.0], [-1.0]], "tokens": [["a", "b"], ["c"]]}
    path = tmp_path / "in.jsonl"
    rows = [deep | {"rewards": [[1.0], [0.0]]}, flat | {"rewards": [1.0, 0.0]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[::-1]]))
    assert grpo("check", str(path)).exit_code == 0
