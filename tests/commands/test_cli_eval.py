"""``grpo eval`` in this process: formats, levels, fields, errors and their exit codes."""

from __future__ import annotations

import json
from itertools import permutations


def test_a_table_says_how_many_rows_it_left_out(grpo, dump):
    path = str(dump(*[{}] * 60))
    result = grpo("eval", path)
    assert "… 10 more records (use --full or --format jsonl)" in result.stderr
    assert grpo("eval", path, "--limit", "0").stderr == ""
    assert grpo("eval", path, "-q").stderr.count("\n") == 1, "which rows these are is no note"
    tokens = grpo("eval", path, "--level", "token", "--limit", "2")
    assert "… 178 more tokens" in tokens.stderr
    assert tokens.stdout.count("record 0 (line 1), response 0") == 1
    assert "response 1" not in tokens.stdout


def test_every_format_keeps_to_the_limit(grpo, dump):
    path = str(dump(*[{}] * 5))
    for level in ("record", "response", "token"):
        lines = grpo("eval", path, "--level", level, "-f", "csv", "--limit", "3").stdout
        assert lines.count("\n") == 1 + 3
    assert grpo("eval", path, "-f", "jsonl", "--limit", "3").stdout.count("\n") == 3
    assert grpo("eval", path, "--only", "loss", "--limit", "3").stdout.count("\n") == 3
    assert len(json.loads(grpo("eval", path, "--json", "--limit", "3").stdout)["records"]) == 3
    for level, rest in (("record", "2 more records"), ("response", "7 more"), ("token", "12 more")):
        told = grpo("eval", path, "--beta", "0", "--level", level, "--limit", "3").stderr
        assert f"… {rest}" in told
    long = {"log_probs_new": [[-0.5] * 200, [-0.5] * 7]}
    path = str(dump(long | {"log_probs_old": None, "log_probs_ref": None}))
    told = grpo("eval", path, "-v", "dr", "--level", "token").stderr
    assert "… 7 more tokens" in told


def test_where_finds_a_key_wherever_its_letters_are(grpo, tmp_path):
    """Lines are ruled out by their text, in which other keys have letters of this one."""
    others = {"pets": 2, "steep": [7], "step_2": 5, "x": 0}
    record = {"log_probs_new": [[-0.5], [-1.0]], "rewards": [1.0, 0.0]}
    orders = enumerate(permutations((*others, "step")))
    lines = [
        {key: others.get(key, at % 4) for key in order} | {"id": at} | record
        for at, order in orders
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    for where, wanted in (("step==2", {2}), ("step in [1, 3]", {1, 3}), ("step!=0", {1, 2, 3})):
        found = grpo("eval", path, "-v", "dr", "--where", where, "-f", "jsonl").stdout.splitlines()
        ids = [one["id"] for one in lines if one["step"] in wanted]
        assert [json.loads(line)["id"] for line in found] == ids
