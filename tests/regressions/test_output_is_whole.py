"""``-o FILE`` is written whole or not at all: a failure leaves an older file as it was."""

from __future__ import annotations

import fcntl
import resource
from pathlib import Path

import pytest
from fuzz.product import process

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
        (["split", "-n", "1", "--beta", "0.04"], [{}]),
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


def test_too_few_files_are_no_fault_of_standard_output(dump):
    done = process(
        ["eval", "-v", "dr", "-j", "2", dump({})],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (11, 11)),
    )
    assert done.stderr in (
        b"",
        b"grpo: too many open files; raise the limit (ulimit -n)\n",
    )
