"""Of a batch that was not read whole no total is printed, for a script would take it for one."""

from __future__ import annotations

import json

import pytest

BROKEN = ({}, '{"log_probs_new": [[-1.0], [0.5]], "rewards": [1, 0]}', {})
FLAGS = ("-v", "dr")


@pytest.mark.parametrize(
    "flags",
    [("--only", "loss"), ("-f", "csv"), ("-f", "json"), ("-f", "jsonl"), ("-f", "table")],
    ids=lambda flags: flags[1],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_no_total_of_a_part(grpo, dump, flags, jobs):
    path = str(dump(*BROKEN))
    done = grpo("eval", path, *FLAGS, "--level", "batch", *flags, "--jobs", jobs)
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "log_probs_new[1][0]" in done.stderr


def test_the_rows_before_the_error_are_printed_without_a_total(grpo, dump):
    path = str(dump(*BROKEN))
    document = json.loads(grpo("eval", path, *FLAGS, "--json").stdout)
    assert document["total"] is None
    assert len(document["records"]) == 1
    table = grpo("eval", path, *FLAGS).stdout
    assert "gradient norm" not in table
    assert "evaluated" not in table
    rows = grpo("eval", path, *FLAGS, "--only", "loss").stdout.split()
    assert rows == grpo("eval", str(dump({})), *FLAGS, "--only", "loss").stdout.split()


def test_what_is_skipped_leaves_a_total(grpo, dump):
    flags = (*FLAGS, "--level", "batch", "--only", "loss", "--on-error", "skip")
    done = grpo("eval", str(dump(*BROKEN)), *flags)
    assert done.exit_code == 3
    assert float(done.stdout) == float(grpo("eval", str(dump({}, {})), *flags).stdout)
