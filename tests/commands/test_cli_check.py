"""``grpo check`` as users run it: what is printed, and the exit codes."""

from __future__ import annotations

import json
import math

import pytest
from planted import DUMPS, write

DAPO = DUMPS / "trl-1.16.0-dapo.jsonl"
ROWS = [json.loads(line) for line in DAPO.read_text().splitlines()]


def probabilities(tmp_path):
    key = "old_per_token_logps"
    one = ROWS[1] | {key: [[math.exp(x) for x in values] for values in ROWS[1][key]]}
    return str(write(tmp_path / "dump.jsonl", [ROWS[0], one, *ROWS[2:]]))


def test_a_clean_dump_is_0(grpo):
    result = grpo("check", str(DAPO))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "12 info in 8 records, 64 responses, 1,834 tokens"
    assert "… 5 more length-cap" in result.stdout
    assert result.stderr == ""


def test_an_error_is_1_though_eval_could_not_read_it(grpo, tmp_path):
    path = probabilities(tmp_path)
    assert grpo("eval", path, "--beta", "0").exit_code == 3
    result = grpo("check", path)
    assert result.exit_code == 1
    assert result.stdout.startswith("error probabilities\n")
    assert "dump.jsonl:2, record dapo/1" in " ".join(result.stdout.split())
    assert "→ take the natural logarithm" in result.stdout


def test_json_has_the_shape_that_is_promised(grpo, tmp_path):
    result = grpo("check", probabilities(tmp_path), "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    (error,) = [row for row in document["findings"] if row["severity"] == "error"]
    assert error["code"] == "probabilities"
    assert (error["record"], error["response"], error["token"]) == ("dapo/1", 0, 0)
    assert error["evidence"]["column"] == "log_probs_old"
    assert error["advice"]
    assert {row["severity"] for row in document["findings"]} <= {"error", "warning", "info"}
    assert document["ok"] is False
    assert json.loads(grpo("check", str(DAPO), "--json").stdout)["ok"] is True
    assert document["more"] == {"length-cap": 5}
    assert document["counts"]["length-cap"] == 8


def test_which_records_and_how_many_findings(grpo, tmp_path):
    every = json.loads(grpo("check", str(DAPO), "--json", "--limit", "0").stdout)
    assert (len(every["findings"]), every["more"]) == (12, {})
    chosen = json.loads(grpo("check", str(DAPO), "--json", "--record", "dapo/1").stdout)
    assert chosen["records"] == 1
    assert grpo("check", str(DAPO), "--record", "dapo/99").exit_code not in (0, 1)
    one, two = str(write(tmp_path / "one.jsonl", ROWS[:1])), str(DAPO)
    assert json.loads(grpo("check", one, two, "--json").stdout)["records"] == 9
    result = grpo("check", "--json", stdin=json.dumps(ROWS[0]))
    assert json.loads(result.stdout)["findings"][0]["source"] == "<stdin>"


def test_what_cannot_be_read_is_3(grpo, dump):
    path = str(dump('{"log_probs_new": [["x"]]}', {}))
    assert grpo("check", path).exit_code == 3
    result = grpo("check", path, "--on-error", "skip")
    assert result.exit_code == 3
    assert "1 record, 2 responses" in result.stdout
    assert "skipped 1 record" in result.stderr
    assert grpo("check", "/nowhere.jsonl").exit_code == 3
    for settings in ({"hyperparameters": {"epsilon": "x"}}, {"epsilon": "x"}):
        assert grpo("check", str(dump(settings))).exit_code == 3


@pytest.mark.parametrize(("prompts", "found"), [("ab", True), ("aa", False)])
def test_rows_of_one_group_have_one_prompt(grpo, tmp_path, prompts, found):
    """Though rows are put together by another key, and only what they share is kept."""
    rows = [
        {"uid": "q", "prompt": one, "log_probs_new": [-1.0, -0.5], "rewards": 1.0}
        for one in prompts
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    answer = json.loads(grpo("check", str(path), "--group-by", "uid", "--json").stdout)
    codes = {one["code"]: one["evidence"] for one in answer["findings"]}
    assert codes.get("mixed-prompts") == ({"key": "prompt"} if found else None)


def test_quiet_prints_errors_and_warnings_alone(grpo, dump):
    path = str(dump({"rewards": [1.0, 1.0]}))
    assert "dead-group" in grpo("check", path).stdout
    named = str(dump({"id": "[red]\u001b[2J", "rewards": [1.0, 1.0]}))
    assert "record [red]\\x1b[2J" in grpo("check", named).stdout  # markup is text
    quiet = grpo("check", path, "-q").stdout
    assert "dead-group" not in quiet
    assert "skipped" not in quiet
    assert "info" in quiet
