"""What once ended with a traceback, half an output or a wrong comparison; promises found broken."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shlex
from pathlib import Path

import pytest
from command import answer
from files import expressions
from formats import dumps
from fuzz.product import process


def odd(kind):
    """A column of one value of a type that JSON has not."""
    pa = pytest.importorskip("pyarrow")
    return {
        "binary": lambda: pa.array([b"\xff"]),
        "decimal": lambda: pa.array([1]).cast(pa.decimal128(20, 0)),
        "duration": lambda: pa.array([1], pa.duration("s")),
        "uuid": lambda: pa.array([b"0123456789abcdef"], pa.uuid()),
        "beyond_9999": lambda: pa.array([2**62], pa.timestamp("us")),
        "binaries": lambda: pa.array([[b"\xff"]]),
        "object_of_binary": lambda: pa.array([{"a": b"\xff"}]),
        "decimals": lambda: pa.array([[1]]).cast(pa.list_(pa.decimal128(20, 0))),
        "lists_of_numbers": lambda: pa.array([[[1.0]]]),
    }[kind]()


def table(**columns):
    """A Parquet file of one row of one record, with these columns beside it."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    record = {"log_probs": [[[-0.5, -1.0], [-0.25]]], "rewards": [[1.0, 0.0]]}
    parquet.write_table(pa.table(record | columns), "in.parquet")
    return "in.parquet"


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


def test_promises(grpo, dump):
    def ended(line, *files):
        """The exit code and the error, if any, which is one line; never a traceback."""
        outcome = grpo(*shlex.split(line), *files)
        errors = [one for one in outcome.err.decode().splitlines() if "note:" not in one]
        assert (outcome.trouble, b"Traceback" in outcome.err, len(errors) > 1) == ("", False, False)
        return " ".join([str(outcome.code), *errors])

    def left(name, line, *files):
        """The same, and whether an older file is as it was."""
        if not Path(name).exists():
            Path(name).write_text("an older result\n")
        return f"{ended(line, *files)}: {Path(name).read_text().strip()}"

    def numbers(line, *files, name="loss"):
        """One number of each record that was printed as JSON Lines."""
        outcome = grpo(*line.split(), *files)
        assert outcome.code == 0, outcome.err
        return [json.loads(line)[name] for line in outcome.out.splitlines()]

    names = {"grpo": grpo, "dump": dump, "ended": ended, "left": left, "numbers": numbers}
    names |= {"pa": pytest.importorskip("pyarrow"), "answer": answer, "os": os}
    text = Path(__file__).with_name("promises.txt")
    expressions(text, globals() | names)


@pytest.mark.more
def test_help_on_standard_output_in_latin_1():
    done = process(["eval", "--help"], env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


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
