"""The cheap check that other commands may repeat in one line."""

from __future__ import annotations

import numpy as np
import orjson

from grpo_cli.commands.check.cheap import cheap
from grpo_cli.engine import Reader


def told(tmp_path, old):
    draw = np.random.default_rng(2)
    new = [(-draw.exponential(1.0, 40)).tolist() for _ in range(4)]
    record = {"log_probs_new": new, "log_probs_old": old(new), "rewards": [1.0, 0.0, 1.0, 0.0]}
    path = tmp_path / "one.jsonl"
    path.write_bytes(orjson.dumps(record))
    return [cheap(chunk) for chunk in Reader([str(path)])]


def test_what_is_sane_is_passed_over(tmp_path):
    assert told(tmp_path, lambda new: [[x - 0.01 for x in row] for row in new]) == [None]


def test_fillers_and_foreign_columns_are_told_in_one_line(tmp_path):
    (line,) = told(tmp_path, lambda new: [[0.0] * 40 for _ in new])
    assert line.startswith("filler: log_probs_old is filled with 0.0")
    (line,) = told(tmp_path, lambda new: [row[::-1] for row in new])
    assert line.startswith("unrelated: ")
    assert "\n" not in line
