"""Flags: what they accept, what they refuse, and how they say so."""

from __future__ import annotations

import json

import pytest
from files import each


@each(
    ("arguments", "said"),
    [
        (["-v", "dapoo"], "did you mean dapo?"),
        (["--aggregate", "token-men"], "did you mean token-mean?"),
        (["--epsilon", "nan"], "expected a finite number, got 'nan'"),
        (["--epsilon", "inf"], "expected a finite number"),
        (["--epsilon", "1_0"], "expected a finite number"),
        (["--epsilon", "1e999"], "expected a finite number"),
        (["-p", "std_eps=1e999"], "--param: std_eps: expected a finite number, got 1e999"),
        (["-v", "verl/vanilla", "-p", "dual_clip=1"], "dual_clip"),
        (["-p", "std_eps"], "expected NAME=VALUE"),
        (["-p", "std_epz=1"], "did you mean std_eps?"),
        (["--beta", "0.1", "-p", "beta=0.2"], "beta is given twice"),
        (["--beta", "-1"], "beta"),
        (["--json", "-f", "csv"], "--json contradicts --format csv"),
        (["--only", "loss", "--fields", "loss"], "cannot go with --fields"),
        (["--only", "loss", "--json"], "cannot go with --json"),
        (["--only", "los"], "did you mean loss?"),
        (["--fields", "los"], "one of id, source, line"),
        (["--level", "token", "--fields", "gradients"], "did you mean gradient?"),
        (["--format", "xml"], "xml"),
        (["--level", "batches"], "batches"),
        (["--jobs", "-1"], "--jobs"),
        (["--nest", "-f", "csv"], "--nest is for --format jsonl"),
        (["-o", "no/where"], "cannot write"),
        (["-o", "."], "is a folder, which needs --on"),
    ],
)
def test_usage_errors(grpo, dump, arguments, said):
    result = grpo("eval", str(dump({})), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["compare", "match", "verify", "check", "split", "trend"])
def test_parquet_is_a_format_of_eval_alone(grpo, dump, command):
    result = grpo(command, str(dump({})), "-f", "parquet")
    assert result.exit_code == 2
    assert "'parquet' is not one of 'table'" in result.stderr


@pytest.mark.parametrize("command", ["compare", "check", "explain", "match"])
def test_where_no_record_is_left_the_ids_are_listed(grpo, dump, command):
    more = ["--loss", "0.1"] if command == "match" else []
    result = grpo(command, str(dump({"id": "step3"})), "--record", "step4", *more)
    assert result.exit_code == 3
    assert "step3" in result.stderr


@pytest.mark.parametrize(
    ("command", "flag"), [("eval", "-o"), ("check", "-o"), ("show", "--html"), ("show", "--svg")]
)
def test_the_input_is_never_replaced(grpo, dump, tmp_path, command, flag):
    path = dump({})
    before = path.read_bytes()
    for place in (str(path), str(tmp_path)):
        result = grpo(command, place, flag, str(path))
        assert result.exit_code == 2
        assert result.stderr == f"grpo: {flag} {path} is the input: name another file\n"
        assert path.read_bytes() == before
    other = tmp_path / "other"
    assert grpo(command, str(path), flag, str(other)).exit_code in (0, 1)
    assert grpo(command, str(path), flag, str(other)).exit_code in (0, 1)  # what it made itself


def test_a_usage_error_is_json_where_json_is_wanted(grpo, dump):
    result = grpo("eval", str(dump({})), "--json", "-v", "nope")
    error = json.loads(result.stderr)["error"]
    assert error["kind"] == "usage"
    assert error["source"] is None
    assert "nope" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        (["--epsilon", "0.3"], "clip[low=0.3,high=0.3]"),
        (["--epsilon", "0.3", "--epsilon-high", ".5"], "clip[low=0.3,high=0.5]"),
        (["--beta", "0.1"], "beta=0.1"),
        (["-v", "verl/vanilla", "-p", "dual_clip=1.1"], "1.1"),
        (["-p", "std_ddof=0"], "ddof=0"),
        (["-p", "kl_weight=ratio"], "weight=ratio"),
        (["-p", "log_ratio_clamp=null"], "ratio:token|"),
        (["--aggregate", "seq-mean-token-sum"], "agg:token-sum|"),
        (["--kl", "low_var_kl"], "kl:k3["),
        (["--batch", "record"], "batch:record|"),
    ],
)
def test_flags_reach_the_signature(grpo, dump, arguments, piece):
    result = grpo("eval", str(dump({})), "--json", *arguments)
    assert piece in json.loads(result.stdout)["signature"]


def test_output_appears_whole_or_not_at_all(grpo, dump, tmp_path):
    path, out = str(dump({})), tmp_path / "out.json"
    out.write_text("before")
    out.chmod(0o640)
    assert grpo("eval", path, "-v", "nope", "-o", str(out)).exit_code == 2
    assert out.read_text() == "before"
    result = grpo("eval", path, "--json", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(out.read_text())["total"]["records"] == 1
    assert out.stat().st_mode & 0o777 == 0o640
    broken = str(dump({}, '{"rewards": 1}'))
    assert grpo("eval", broken, "-f", "jsonl", "-o", str(tmp_path / "new")).exit_code == 3
    assert not (tmp_path / "new").exists()
    assert grpo("eval", str(dump({})), "-o", str(tmp_path)).exit_code == 2


def test_help_and_version(grpo):
    for arguments in ((), ("-h",), ("--help",)):
        assert "grpo match FILE --loss 0.0123" in grpo(*arguments).output
    assert "--epsilon-low NUMBER" in grpo("eval", "--help-all").stdout
    result = grpo("eval", "-h")
    assert "zcat dump.jsonl.gz | grpo eval" in result.stdout
    assert "[FILE…]" in result.stdout
    assert grpo("-V").stdout == grpo("--version").stdout == "grpo 0.3.0\n"


def test_variants_as_json_and_as_a_table(grpo):
    document = json.loads(grpo("variants", "--json").stdout)
    rows = {row["name"]: row for row in document["variants"]}
    assert rows["dr"]["stages"]["advantage"] == "group-mean"
    assert "dr_grpo" in rows["dr"]["aliases"]
    assert rows["dapo"]["paper"] == "2503.14476"
    assert document["stages"]["kl"]["choices"]["k3"]["aliases"] == ["low_var_kl"]
    table = " ".join(grpo("variants").stdout.split())
    assert "Decoupled Clip and Dynamic Sampling Policy Optimization" in table
    assert "seq-mean-token-mean" in table
    some = grpo("variants", "trl/*").stdout
    assert "trl/dapo" in some
    assert "verl/" not in some
    assert grpo("variants", "x").exit_code == 2
