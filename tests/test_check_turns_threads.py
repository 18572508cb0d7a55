"""The threads on turns in samples/threads/turns: the command that one would run answers each."""

from __future__ import annotations

import sys
from pathlib import Path

from command import answer, run
from files import each

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from sample_threads import SAMPLES, named
from trials.turns.threads import THREADS, Thread
from trials.verify import CAUSES, texts


@each("thread", THREADS, ids=lambda thread: thread.name)
def test_the_command_answers_the_thread_and_names_nothing_else(thread: Thread) -> None:
    command, *flags = thread.command.split()
    path = SAMPLES / "turns" / f"{named(thread.name)}.jsonl"
    if command == "eval":
        assert thread.says in run(command, path, *flags).stdout
        return
    document = answer(command, path)
    if thread.command == "verify":
        assert any(thread.says in text for text in texts(document["records"], CAUSES))
        return
    loud = [one for one in document["findings"] if one["severity"] != "info"]
    assert {one["code"] for one in loud} - {"singleton-group"} == {thread.code}
    assert any(thread.says in one["message"] for one in loud)


def test_every_sample_belongs_to_a_thread_and_the_page_lists_it() -> None:
    page = (SAMPLES / "README.md").read_text("utf-8")
    assert {path.stem for path in (SAMPLES / "turns").iterdir()} == {named(t.name) for t in THREADS}
    for thread in THREADS:
        command, *flags = thread.command.split()
        asked = " ".join([command, f"turns/{named(thread.name)}.jsonl", *flags])
        assert f"grpo {asked}" in page
