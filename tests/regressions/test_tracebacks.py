"""What once ended with a traceback, half an output or a wrong comparison; promises found broken."""

from __future__ import annotations

import fcntl
import json
import os
import resource
from pathlib import Path

import pytest
from command import answer
from formats import dumps
from fuzz.product import process

# ---- bad input is one line and exit code 3, however odd it is; never a traceback and 70 ----------


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
    name = dump({}, name=os.fsdecode(b"\xff.jsonl"))
    quiet = ["-q"] if "--html" in words else []  # else it says what it wrote
    fine(grpo(*words, *variant, *quiet, name), 0, 1, 3)


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


@pytest.mark.more
def test_help_on_standard_output_in_latin_1():
    done = process(["eval", "--help"], env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


# ---- ``-o FILE`` is written whole or not at all: a failure leaves an older file as it was --------


OLD = "an older result\n"
BAD = '{"log_probs_new": [[-0.5, 7]], "rewards": [1]}'


@pytest.mark.parametrize(
    ("words", "records"),
    [
        *((["eval", "-v", "dr", "-f", kind], [{}, BAD]) for kind in ("json", "jsonl", "csv")),
        (["eval", "-v", "dr"], [{}, BAD]),
        (["eval", "-v", "dr", "-f", "jsonl"], [BAD]),
        (["eval", "-v", "dr", "--level", "token", "--only", "gradient"], [{}, BAD]),
        (["compare", "--variants", "grpo", "--beta", "0.04"], [{}]),
    ],
)
def test_a_failure_leaves_the_older_file(grpo, dump, words, records):
    Path("out").write_text(OLD)
    outcome = grpo(*words, "-o", "out", dump(*records))
    assert (outcome.code, Path("out").read_text()) == (3, OLD)


def test_convert_leaves_the_older_file(grpo, dump):
    Path("out").write_text(OLD)
    assert grpo("convert", "-o", "out", dump({}, '{"log_probs_new": 5}')).code == 3
    assert Path("out").read_text() == OLD
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "out"]


@pytest.mark.parametrize("length", [246, 255])
def test_a_name_may_be_as_long_as_the_file_system_allows(grpo, dump, length):
    assert grpo("eval", "-v", "dr", "-o", "x" * length, dump({})).code == 0
    assert Path("x" * length).stat().st_size
    assert len([*Path().iterdir()]) == 2


def test_a_read_only_file_is_not_replaced(grpo, dump):
    Path("out").write_text(OLD)
    Path("out").chmod(0o444)
    outcome = grpo("eval", "-v", "dr", "-o", "out", dump({}))
    assert (outcome.code, Path("out").read_text()) == (2, OLD)
    assert outcome.err == b"grpo: --output: cannot write out: it is read-only\n"


@pytest.mark.parametrize("words", [("convert",), ("eval", "-v", "dr", "-f", "jsonl")], ids=" ".join)
@pytest.mark.parametrize("named", ["run", "run/*.jsonl"])
def test_the_output_is_not_read_the_next_time(grpo, dump, words, named):
    Path("run").mkdir()
    Path(dump({})).rename("run/a.jsonl")
    assert grpo(*words, named, "-o", "run/b.jsonl").code == 0
    outcome = grpo(*words, named, "-o", "run/b.jsonl")
    assert outcome.err == b"grpo: -o run/b.jsonl is the input: name another file\n"
    assert Path("run/b.jsonl").read_text().count("\n") == 1
    assert grpo("convert", "run/a.jsonl", "-o", "run/a.jsonl").code == 0


def test_what_a_killed_command_left_is_removed_by_the_next(grpo, dump):
    """But not what another writes at the moment, nor what is called nearly so."""
    with open(".out.0123abcd", "w") as running:  # noqa: PTH123
        fcntl.flock(running, fcntl.LOCK_EX)
        for name in (".out.89abcdef", ".out.notes", ".other.01234567"):
            Path(name).touch()
        assert grpo("eval", "-v", "dr", "-o", "out", dump({})).code == 0
    left = {path.name for path in Path().iterdir()}
    assert left == {"in.jsonl", "out", ".out.0123abcd", ".out.notes", ".other.01234567"}


@pytest.mark.more
def test_too_few_files_are_no_fault_of_standard_output(dump):
    done = process(
        ["eval", "-v", "dr", "-j", "2", dump({})],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (11, 11)),
    )
    assert done.stderr in (
        b"",
        b"grpo: too many open files; raise the limit (ulimit -n)\n",
    )


# ---- what the documentation promises, where it was found broken ----------------------------------


def numbers(outcome, name="loss"):
    """One number of each record that was printed as JSON Lines."""
    assert outcome.code == 0, outcome.err
    return [json.loads(line)[name] for line in outcome.out.splitlines()]


def test_a_record_with_two_masks_is_converted(grpo, dump):
    masks = {"loss_mask": [[1, 1], [1]], "response_mask": [[1, 0], [1]]}
    direct = grpo("eval", "-v", "dr", "-f", "jsonl", dump(masks))
    assert grpo("convert", "-o", "made.jsonl", "in.jsonl").code == 0
    assert numbers(grpo("eval", "-v", "dr", "-f", "jsonl", "made.jsonl")) == numbers(direct)


def test_an_unused_column_of_nanoseconds(grpo):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    times = pa.array([1], pa.timestamp("ns"))
    record = {"log_probs": [[[-0.5, -1.0], [-0.25]]], "rewards": [[1.0, 0.0]], "when": times}
    parquet.write_table(pa.table(record), "in.parquet")
    assert grpo("eval", "-v", "dr", "in.parquet").code == 0


def unipo(**changed):
    """A UNIPO file whose first response is changed."""
    value = dumps.of("unipo")[0]
    response = value["entries"][0]["prompts"][0]["responses"][0]
    response["tokens"] |= {key: one for key, one in changed.items() if key in response["tokens"]}
    response |= {key: one for key, one in changed.items() if key in response}
    if "advantage" in changed:
        del response["advantage"]
    Path("unipo.json").write_text(json.dumps(value))
    return "unipo.json"


def test_unipo_old_log_probs_missing_in_one_response(grpo):
    outcome = grpo("eval", "-v", "dr", "--advantage", "group-mean", unipo(old_log_probs=None))
    assert outcome.code == 3 or b"old_log_probs" in outcome.err


def test_unipo_advantages_of_some_responses_only(grpo):
    outcome = grpo("eval", "-v", "dr", unipo(advantage=None))
    usual = b"the records' advantages were used"  # said of the other group, which has them all
    said = [line for line in outcome.err.splitlines() if usual not in line]
    assert outcome.code == 3 or any(b"advantage" in line for line in said)


def test_unipo_record_by_the_id_that_is_printed(grpo):
    steps = [one for one in dumps.of("unipo lines") if one["type"] == "step"]
    for response in (
        r for step in steps for prompt in step["prompts"] for r in prompt["responses"]
    ):
        del response["id"]
    Path("steps.jsonl").write_bytes(dumps.lines(steps))
    printed = numbers(grpo("eval", "-v", "dr", "-f", "jsonl", "steps.jsonl"), "id")
    assert len(set(printed)) == len(printed) == 2
    for one in printed:
        found = grpo("eval", "-v", "dr", "-f", "jsonl", "--record", str(one), "steps.jsonl")
        assert numbers(found, "id") == [one]


def test_integer_ids_beyond_64_bits_are_told_apart(grpo, dump):
    rows = [f'{{"uid": {2**70 + at}, "logps": [-0.5], "reward": {at}}}' for at in (0, 1)]
    outcome = grpo(
        "eval", "-v", "dr", "--group-by", "uid", "--only", "groups", "--level", "batch", dump(*rows)
    )
    assert outcome.out == b"2\n"


def test_integer_group_ids_beyond_64_bits_are_refused(grpo, dump):
    """They cannot be told apart any more when they are read."""
    name = dump({"group_ids": [2**70, 2**70 + 1]})
    outcome = grpo("eval", "-v", "dr", "--only", "groups", "--level", "batch", name)
    assert outcome.code == 3
    assert outcome.out == b""
    assert b"group_ids[0]: expected an id of at most 64 bits, got " in outcome.err
    assert outcome.err.endswith(b"; write such ids as strings\n")


def test_a_mean_is_not_called_a_sum(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record = {"log_probs_new": [[-1.0] * 3, [-1.0] * 2], "rewards": [1e4, 3e4]}
    path.write_text(json.dumps(record))
    words = ("explain", path, "--beta", "0", "--advantage", "raw", "--surrogate", "unclipped")
    assert "sums" not in {one["code"] for one in answer(*words)["why"]}
