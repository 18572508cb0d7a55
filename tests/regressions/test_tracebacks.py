"""Bad input is one line and exit code 3, however odd it is; never a traceback and 70."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fuzz.product import process


def fine(outcome, *codes):
    """Whether a command ended as promised, with one line for an error."""
    assert b"Traceback" not in outcome.err
    assert outcome.code in (codes or (0, 3))
    assert outcome.trouble == ""
    errors = [line for line in outcome.err.splitlines() if b"note:" not in line]
    assert len(errors) == (outcome.code == 3)
    return True


@pytest.mark.parametrize(
    "words",
    [
        ["show", "--html", "page.html"],
        ["match", "--loss", "1", "--json"],
        ["split", "-n", "1", "--json"],
        ["explain", "--json"],
        ["check"],
        ["eval", "-f", "jsonl"],
        ["eval", "-f", "csv"],
        ["check", "--json"],
    ],
    ids=" ".join,
)
def test_a_name_that_is_not_utf_8(grpo, dump, words):
    variant = [] if words[0] == "check" else ["-v", "dr"]
    records = [{"rewards": [1, "x"]} if words[0] == "check" else {}]
    name = dump(*records, name=os.fsdecode(b"\xff.jsonl"))
    fine(grpo(*words, *variant, name), 0, 1, 3)


def test_token_ids_that_are_an_empty_list(grpo, dump):
    text = '{"log_probs_new": [-0.1, -0.2], "rewards": [1, 0], "token_ids": []}'
    fine(grpo("eval", "-v", "dr", dump(text)))


@pytest.mark.parametrize("digits", [308, 309, 400])
@pytest.mark.parametrize("field", ["rewards", "id", "extra"])
def test_an_integer_of_many_digits(grpo, dump, digits, field, request):
    number = "9" * digits
    value = f"[{number}, 0]" if field == "rewards" else number
    text = f'{{"log_probs_new": [-0.1, -0.2], "{field}": {value}, "advantages": [1, 2]}}'
    fine(grpo("eval", "-v", "dr", dump(text)))


def test_explain_of_an_empty_response(grpo, dump):
    value = {"log_probs_new": [[-0.5], []], "tokens": [["a"], []], "rewards": [1, 0]}
    fine(grpo("explain", "--beta", "0", dump(json.dumps(value))))


def test_expected_metrics_that_are_a_number(grpo, dump):
    fine(grpo("verify", "-v", "dr", dump({"expected": {"metrics": 5}})))


def test_advantages_expected_of_responses_without_tokens(grpo, dump):
    value = {"log_probs_new": [[]], "advantages": [1.0], "expected": {"advantages": [0.5]}}
    fine(grpo("verify", "-v", "dr", dump(json.dumps(value))), 1)


def test_group_ids_of_mixed_depth(grpo, dump):
    fine(grpo("eval", "-v", "dr", "--group", "1", dump({"group_ids": [["a"], 1]})), 2, 3)


def test_convert_of_a_field_nested_deeply(grpo, dump):
    text = json.dumps({"log_probs_new": [-0.5], "rewards": [1]})
    fine(grpo("convert", dump(f'{text[:-1]}, "meta": {"[" * 1000}{"]" * 1000}}}')))


def test_group_by_of_a_field_nested_deeply(grpo, dump):
    text = f'{{"logps": [-0.5], "reward": 1, "uid": {"[" * 256}{"]" * 256}}}'
    fine(grpo("eval", "-v", "dr", "--group-by", "uid", dump(text)))


@pytest.mark.parametrize("text", ["5", "null", "[1]", 7, b"{}"])
def test_a_json_column_without_an_object(grpo, text):
    write_table(grpo_json=[text])
    fine(grpo("eval", "-v", "dr", "in.parquet"))


ODD = ("binary", "decimal", "duration", "uuid", "date beyond 9999")


def odd(kind):
    """A column of one value of a type that JSON has not."""
    pa = pytest.importorskip("pyarrow")
    return {
        "binary": lambda: pa.array([b"\xff"]),
        "decimal": lambda: pa.array([1]).cast(pa.decimal128(20, 0)),
        "duration": lambda: pa.array([1], pa.duration("s")),
        "uuid": lambda: pa.array([b"0123456789abcdef"], pa.uuid()),
        "date beyond 9999": lambda: pa.array([2**62], pa.timestamp("us")),
        "binaries": lambda: pa.array([[b"\xff"]]),
        "object of binary": lambda: pa.array([{"a": b"\xff"}]),
        "decimals": lambda: pa.array([[1]]).cast(pa.list_(pa.decimal128(20, 0))),
        "lists of numbers": lambda: pa.array([[[1.0]]]),
    }[kind]()


def write_table(**columns):
    """A Parquet file of one row of one record, with these columns beside it."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    record = {"log_probs": [[[-0.5, -1.0], [-0.25]]], "rewards": [[1.0, 0.0]]}
    parquet.write_table(pa.table(record | columns), "in.parquet")


@pytest.mark.parametrize("kind", ODD)
def test_convert_of_a_column_that_json_has_no_type_for(grpo, kind):
    write_table(extra=odd(kind))
    fine(grpo("convert", "in.parquet"))


@pytest.mark.parametrize(
    "kind", ["binaries", "object of binary", "decimals", "lists of numbers", "date beyond 9999"]
)
def test_group_by_of_a_column_that_json_has_no_type_for(grpo, kind):
    write_table(log_probs=[[-0.5, -1.0]], rewards=[1.0], extra=odd(kind))
    words = ["--group-by", "extra", "--level", "response", "--json"]
    fine(grpo("eval", "-v", "dr", *words, "in.parquet"))


def test_output_on_a_loop_of_links(grpo, dump):
    Path("loop").symlink_to("loop")
    outcome = grpo("eval", "-v", "dr", "-o", "loop", dump({}))
    assert outcome.code == 2
    assert outcome.err.startswith(b"grpo: --output: cannot write loop: ")


def test_help_on_standard_output_in_latin_1():
    done = process(["eval", "--help"], env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


def test_trend_skips_what_is_no_object(grpo):
    row = '{"step": %d, "log_probs_new": [[-1.0], [-1.0]], "rewards": [0, 1]}\n'
    Path("run.jsonl").write_text(row % 1 + "[1, 2, 3]\n" + row % 2)
    outcome = grpo("trend", "run.jsonl", "--on-error", "skip", "--json")
    assert (outcome.code, b'"line":2,' in outcome.err) == (3, True)
    assert [step["step"] for step in json.loads(outcome.out)["steps"]] == [1, 2]
