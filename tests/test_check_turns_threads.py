"""The threads on turns in samples/threads/turns: the command that one would run answers each."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from command import answer, run
from files import each

SAMPLES = Path(__file__).parents[1] / "samples" / "threads"
TABLE = SAMPLES / "turns.csv"
"""The threads: name, what each is about, the command, what that says, and the finding's code."""

with TABLE.open(newline="", encoding="utf-8") as text:
    THREADS = [*csv.DictReader(text)]


def named(thread: str) -> str:
    """The name of a thread's file."""
    return re.sub("[^a-z0-9]+", "-", thread.lower())


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
