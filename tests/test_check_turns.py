"""Turns of agents: clean batches are clean, and mistakes of turns are named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from command import answer, run
from files import each, rows_of, some
from trials.product import lines
from trials.turns.faults import FAULTS, Fault, planted
from trials.turns.kinds import KINDS, dumped
from trials.turns.wrong import WRONG, Wrong, mistaken


@pytest.mark.more
def test_clean_batches_of_agents_have_no_fault(tmp_path: Path) -> None:
    """Every layout and every credit that frameworks have, in one file."""
    path = tmp_path / "clean.jsonl"
    every = [
        record
        for seed, kind in enumerate(KINDS)
        for record in dumped(kind, np.random.default_rng(seed), kind.name)
    ]
    path.write_bytes(lines(every))
    document = answer("check", path, "--limit", 0)
    assert document["records"] == len(KINDS)
    loud = [one for one in document["findings"] if one["severity"] != "info"]
    assert [(one["record"], one["code"]) for one in loud] == []
    assert "turns-missing" not in document["counts"]  # nor as an info, where half are sampled


@each("fault", some(FAULTS, 12), ids=lambda fault: fault.name)
def test_a_fault_of_turns_is_named(fault: Fault, tmp_path: Path) -> None:
    """At its first and at its last strength, unless that is too weak to be sure."""
    for strength in {fault.strengths[0]: 0, fault.strengths[-1]: 0}:
        made = planted(fault, strength, fault.kinds[0], np.random.default_rng(5), "planted")
        path = tmp_path / "fault.jsonl"
        path.write_bytes(lines(made))
        found = answer("check", path)["findings"]
        loud = {one["code"] for one in found if one["severity"] != "info"}
        assert loud - {*fault.codes} <= {"singleton-group"}
        if fault.sure is None or strength in fault.sure:
            assert loud & {*fault.codes}


@pytest.mark.more
@each("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_implementation_is_explained(wrong: Wrong, tmp_path: Path) -> None:
    for at, change in enumerate((wrong, None)):
        record = mistaken(change, wrong.tried_on[0], np.random.default_rng(5), "record")
        path = tmp_path / f"{at}.jsonl"
        path.write_bytes(lines([record]))
        document = answer("verify", path)
        assert document["ok"] == (change is None)
        (row,) = document["records"]
        if change is not None:
            assert row["first"]["mistakes"][0] == wrong.row
            assert re.search(wrong.said, row["first"]["causes"][0])


def rows(**columns: object) -> dict[str, object]:
    """Two tasks of three attempts, of which the second has three turns, a response each."""
    names = [f"{task}.{turn}" for task in "ab" for turn in (0, 1, 1, 1, 2)]
    found = {
        "log_probs_new": [[-0.5, -0.1, -0.7]] * 10,
        "group_ids": [name[0] for name in names],
        "trajectory_ids": names,
        "rewards": [1, 0, 0, 0, 1, 0, 1, 1, 1, 0],
    }
    return found | columns


def loud(record: dict[str, object], path: Path) -> set[str]:
    path.write_bytes(lines([record]))
    found = answer("check", path)["findings"]
    return {one["code"] for one in found if one["severity"] != "info"} - {"duplicate"}


# ---- threads -------------------------------------------------------------------------------------


SAMPLES = Path(__file__).parents[1] / "samples" / "threads"
TABLE = SAMPLES / "turns.csv"
"""The threads: name, what each is about, the command, what that says, and the finding's code."""
THREADS = rows_of(TABLE)


def named(thread: str) -> str:
    """The name of a thread's file."""
    return re.sub("[^a-z0-9]+", "-", thread.lower())


@pytest.mark.more
@each("thread", THREADS, ids=lambda thread: thread["name"])
def test_the_command_answers_the_thread_and_names_nothing_else(thread: dict[str, str]) -> None:
    command, *flags = thread["command"].split()
    path, says = SAMPLES / "turns" / f"{named(thread['name'])}.jsonl", thread["says"]
    if command == "eval":
        assert says.replace(r"\n", "\n") in run(command, path, *flags).stdout
        return
    document = answer(command, path)
    if command == "verify":
        (first,) = {record["first"]["cause"] for record in document["records"]}
        assert says in first
        return
    loud = [one for one in document["findings"] if one["severity"] != "info"]
    assert {one["code"] for one in loud} - {"singleton-group"} == {thread["code"]}
    assert any(says in one["message"] for one in loud)


def test_every_sample_belongs_to_a_thread_and_the_page_lists_it() -> None:
    page = (SAMPLES / "README.md").read_text("utf-8")
    files = {named(thread["name"]) for thread in THREADS}
    assert {path.stem for path in (SAMPLES / "turns").iterdir()} == files
    for thread in THREADS:
        command, *flags = thread["command"].split()
        asked = " ".join([command, f"turns/{named(thread['name'])}.jsonl", *flags])
        assert f"grpo {asked}" in page
