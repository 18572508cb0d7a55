"""A record is called by its id, or else by one number, in every report and by every flag."""

from __future__ import annotations

import json

import pytest

RECORD = {"log_probs_new": [[-0.9, -0.2], [-1.1]], "log_probs_old": [[-1.0, -0.25], [-1.0]]}


@pytest.fixture
def gaps(tmp_path):
    """Three records without ids on lines 1, 3 and 6."""
    path = tmp_path / "gaps.jsonl"
    own = {"rewards": [1, 1], "advantages": [0, 0], "expected": {"loss": 9.0}}
    line = json.dumps(RECORD | own)
    path.write_text(f"{line}\n\n{line}\n\n\n{line}\n")
    return str(path)


def names(grpo, command: str, path: str, *flags: str) -> list[object]:
    done = grpo(command, path, *flags, "--json")
    document = json.loads(done.stdout)
    if command == "check":
        return [row["record"] for row in document["findings"] if row["code"] == "dead-group"]
    return [row["id"] for row in document["records"]]


def test_blank_lines_give_no_other_numbers(grpo, gaps):
    assert names(grpo, "eval", gaps, "-v", "dr") == [0, 2, 5]
    assert names(grpo, "verify", gaps, "-v", "dr") == [0, 2, 5]
    assert names(grpo, "check", gaps) == [0, 2, 5]
    written = [json.loads(line) for line in grpo("convert", gaps).stdout.splitlines()]
    assert [record.get("id", at) for at, record in enumerate(written)] == [0, 2, 5]


@pytest.mark.parametrize("number", ["0", "2", "5"])
def test_the_number_that_a_report_shows_is_the_one_that_flags_take(grpo, gaps, number):
    for command in ("eval", "explain", "show"):
        done = grpo(command, gaps, "-v", "dr", "--record", number)
        assert done.exit_code == 0
    assert f"record {number}" in grpo("show", gaps, "-v", "dr", "--record", number).stdout
    assert names(grpo, "eval", gaps, "-v", "dr", "--record", number) == [int(number)]


def test_records_with_ids_have_their_numbers_too(grpo, dump):
    path = str(dump({"id": "a"}, {"id": "b"}, {"id": 1}))
    assert names(grpo, "eval", path, "--beta", "0", "--record", "0") == ["a"]
    assert names(grpo, "eval", path, "--beta", "0", "--record", "b") == ["b"]
    assert names(grpo, "eval", path, "--beta", "0", "--record", "1") == ["b", 1]
    assert "record b" in grpo("show", path, "--beta", "0", "--record", "b").stdout


@pytest.mark.parametrize("command", [["eval"], ["explain"], ["compare", "--variants", "grpo"]])
def test_every_command_finds_the_record_that_is_to_blame(grpo, dump, command):
    small = {"log_probs_new": [[-1.0]] * 3, "log_probs_old": [[-1.0]] * 3, "log_probs_ref": None}
    rows = [{"rewards": [1, 0, 2, 3]}] * 2 + [{"rewards": [1, 0, 2]} | small]
    wide = {key: [[-1.0]] * 4 for key in ("log_probs_new", "log_probs_old")}
    path = str(dump(*(wide | {"log_probs_ref": None} | row for row in rows[:2]), rows[2]))
    name, *flags = command
    done = grpo(name, path, *flags, "--beta", "0", "-p", "std_ddof=3", "--json")
    said = done.stdout + done.stderr
    assert "dump.jsonl:3" in said or '"line":3' in said
