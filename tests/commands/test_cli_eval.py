"""``grpo eval`` in this process: formats, levels, fields, errors and their exit codes."""

from __future__ import annotations

import json


def test_fields_choose_and_order(grpo, dump):
    path = str(dump({}))
    record = json.loads(grpo("eval", path, "-f", "jsonl", "--fields", "loss,objective").stdout)
    assert list(record) == ["loss", "objective"]
    flags = ("-f", "jsonl", "--level", "token", "--fields", "gradient,ratio")
    token = json.loads(grpo("eval", path, *flags, "--nest").stdout)
    assert list(token) == ["id", "responses"]
    assert list(token["responses"][0]) == ["response", "tokens"]
    assert list(token["responses"][0]["tokens"]) == ["gradient", "ratio"]
    lines = [json.loads(line) for line in grpo("eval", path, *flags).stdout.splitlines()]
    assert [list(line) for line in lines] == [["gradient", "ratio"]] * 3
    text = grpo("eval", path, "-f", "csv", "--level", "response", "--fields", "reward,id").stdout
    assert text == "reward,id\n1.0,0\n0.0,0\n"
    batch = grpo("eval", path, "--level", "batch", "--fields", "tokens").stdout
    assert batch.split() == ["tokens", "3"]


def test_only_prints_bare_values(grpo, dump):
    path = str(dump({}, {}))
    loss = json.loads(grpo("eval", path, "--json").stdout)["total"]["loss"]
    assert float(grpo("eval", path, "--only", "loss", "--level", "batch").stdout) == loss
    assert len(grpo("eval", path, "--only", "loss").stdout.splitlines()) == 2
    assert grpo("eval", path, "--only", "length", "--level", "response").stdout == "2\n1\n2\n1\n"
    assert len(grpo("eval", path, "--only", "ratio", "--level", "token").stdout.split()) == 6
    pairs = grpo("eval", path, "--only", "response,position", "--level", "token").stdout
    assert pairs == "0\t0\n0\t1\n1\t0\n" * 2


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


def test_several_files_name_their_source(grpo, dump):
    paths = [str(dump({}, name=name)) for name in ("a.jsonl", "b.jsonl")]
    text = grpo("eval", *paths, "-f", "csv", "--fields", "source").stdout
    assert text.split() == ["source", *paths]
    assert "source" in grpo("eval", *paths).stdout


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
