"""One number under the name of a token column, as trainers log it, beside nested log-probs."""

from __future__ import annotations

import json

import pytest

RECORD = {
    "per_token_logps": [[-0.5, -0.25], [-0.125, -1.0]],
    "old_per_token_logps": [[-0.25, -0.5], [-0.25, -1.5]],
    "rewards": [1.0, 0.0],
}
NOTE = "entropy is one number in a record: a logged metric, not read as a column"


def written(path, *records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


@pytest.mark.parametrize("before", [[], [RECORD], [{**RECORD, "reward": None}]])
def test_a_logged_entropy_changes_no_number(grpo, tmp_path, before):
    metric = written(tmp_path / "a.jsonl", *before, RECORD | {"entropy": 0.77}, RECORD)
    plain = written(tmp_path / "b.jsonl", *before, RECORD, RECORD)
    done, other = (grpo("eval", path, "--only", "loss,contribution") for path in (metric, plain))
    assert done.stdout == other.stdout != ""
    assert NOTE in done.stderr.replace("\n", " ")
    assert NOTE in grpo("check", metric).stderr


@pytest.mark.parametrize("metric_first", [True, False])
def test_a_column_in_another_record_stays_one(grpo, tmp_path, metric_first):
    column = RECORD | {"entropy": [[0.5, 0.25], [0.5, 0.75]]}
    records = [RECORD | {"entropy": 0.77}, column]
    path = written(tmp_path / "a.jsonl", *records[:: 1 if metric_first else -1])
    done = grpo("eval", path, "-f", "json", "--level", "record")
    assert done.exit_code == 0, done.stderr
    assert NOTE in done.stderr


@pytest.mark.parametrize(
    "record",
    [
        RECORD | {"entropy": "high"},
        RECORD | {"entropy": True},
        RECORD | {"old_per_token_logps": -0.5},
        {"per_token_logps": [-0.5, -0.25], "reward": 1.0, "entropy": 0.77},
    ],
)
def test_anything_else_is_an_error(grpo, tmp_path, record):
    assert grpo("eval", written(tmp_path / "a.jsonl", record)).exit_code == 3
