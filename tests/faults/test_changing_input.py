"""Input that is truncated, grows, is replaced or deleted while it is read; pipes with names."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from faults import some
from faults.runs import Run, clean, shell, write_records

EVAL = (
    *("eval", "-v", "dr", "--level", "token", "-f", "jsonl", "--nest"),
    *("--fields", "id,gradient,ratio"),
)


def while_running(change, jobs):
    """Changes the file when its first rows are out.

    Returns:
        The exit code, the ids that came out, errors, and how many records there were.
    """
    path = write_records(Path("in.jsonl"), 12 * jobs, "old")
    count = path.read_bytes().count(b"\n")
    with Run(*EVAL, "--jobs", str(jobs), "in.jsonl") as run:
        first = run.out.readline()
        change(path)
        rest = run.out.read()
        code, _, err = run.end()
    ids = [json.loads(line)["id"] for line in (first + rest).splitlines()]
    return code, ids, err, count


def replace(path):
    write_records(Path("new.jsonl"), 24, "new")
    Path("new.jsonl").replace(path)


def truncate(path):
    """Behind a line, so that what is left is sound."""
    os.truncate(path, path.read_bytes().rindex(b"\n", 0, path.stat().st_size // 10 * 9) + 1)


def grow(path):
    with path.open("a") as file:
        file.write(path.read_text()[:-1].splitlines()[0] + "\n")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("change", [replace, Path.unlink, truncate, grow])
def test_a_file_that_changes_is_read_to_its_end_or_refused(change, jobs):
    """One that becomes shorter is refused; one that grows is read as it was or as it is."""
    code, ids, err, count = while_running(change, jobs)
    assert clean(err)
    assert {one.partition("-")[0] for one in ids} == {"old"}
    assert code in {truncate: (3,), grow: (0,)}.get(change, (0, 3))
    assert code == 3 or len(ids) in (count, count + (change is grow))


def through_a_pipe(words, data):
    """Runs a command on a pipe with a name, into which the data are written once."""
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(data), daemon=True)
    writer.start()
    with Run(*words, "pipe") as run:
        return run.end(patience=4)


@pytest.mark.parametrize("words", some([EVAL, ("convert",), (*EVAL, "--jobs", "2")], 2), ids=str)
def test_a_pipe_with_a_name_is_read_as_a_file(small, words):
    code, out, err = through_a_pipe(words, small.read_bytes())
    kept = b"grpo: note: pipe was stored in a temporary file, because two passes are needed\n"
    assert (kept in err) == ("token" in words)
    err = err.replace(kept, b"")
    Path("pipe").unlink()
    Path("pipe").write_bytes(small.read_bytes())
    with Run(*words, "pipe") as run:
        assert run.end() == (code, out, err)
    assert code in (0, 1)


TWICE = ("eval", "--advantage", "batch-whiten", "--beta", "0", "--only", "loss", "--level", "batch")


def test_a_pipe_with_a_name_and_the_output_of_a_process_can_be_read_twice(small, folder):
    with Run(*TWICE, str(small)) as run:
        code, out, _ = run.end()
    assert code == 0
    assert through_a_pipe(TWICE, small.read_bytes())[:2] == (code, out)
    assert shell(f"grpo {' '.join(TWICE)} <(cat {small})", folder)[:2] == (code, out)
