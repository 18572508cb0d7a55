"""Turns of agents: clean batches are clean, and mistakes of turns are named."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from command import answer, run
from files import each, rows_of, some

TURNS = Path(__file__).parent / "data" / "turns"
"""Batches of turns that were drawn, and what GRPO and mistakes in it give of some, by definition:
``benchmarks/trials/turns`` of commit f4bf7df1 drew and computed them."""


def drawn(name: str) -> list[tuple[dict[str, str], bytes]]:
    """What was planted, and the record that has it."""
    records = gzip.decompress((TURNS / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [*zip(rows_of(TURNS / f"{name}.csv"), records, strict=True)]


@pytest.mark.more
def test_clean_batches_of_agents_have_no_fault() -> None:
    """Every layout and every credit that frameworks have, in one file."""
    document = answer("check", TURNS / "clean.jsonl.gz", "--limit", 0)
    assert document["records"] == 31
    loud = [one for one in document["findings"] if one["severity"] != "info"]
    assert [(one["record"], one["code"]) for one in loud] == []
    assert "turns-missing" not in document["counts"]  # nor as an info, where half are sampled


@each(("fault", "record"), some(drawn("faults"), 16), ids=lambda case: case[0]["name"])
def test_a_fault_of_turns_is_named(fault: dict[str, str], record: bytes, tmp_path: Path) -> None:
    path = tmp_path / "fault.jsonl"
    path.write_bytes(record)
    found = answer("check", path)["findings"]
    loud = {one["code"] for one in found if one["severity"] != "info"}
    assert loud - {"singleton-group"} == {fault["code"]}


@pytest.mark.more
def test_right_numbers_agree() -> None:
    assert answer("verify", TURNS / "right.jsonl.gz")["ok"]


@pytest.mark.more
@each(("wrong", "record"), drawn("wrong"), ids=lambda case: case[0]["name"])
def test_a_wrong_implementation_is_explained(
    wrong: dict[str, str], record: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(record)
    (row,) = answer("verify", path)["records"]
    assert row["first"]["mistakes"][0] == wrong["row"]
    assert re.search(wrong["said"], row["first"]["causes"][0])


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
