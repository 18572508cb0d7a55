"""The catalogue of messages, held to plain words."""

from __future__ import annotations

import re

import catalogue

PRIVATE = re.compile(r"\b(told|dearest|(is|are) meant|are ours|ours times|knows no such)\b")


def test_messages_use_the_fields_words() -> None:
    listed = [*catalogue.messages()]
    assert len(listed) > 1000
    assert [one for one in listed if PRIVATE.search(one.text)] == []


def test_an_example_is_what_a_snapshot_shows() -> None:
    shown = {"a.txt": "grpo: note: 3 groups are dead: their advantages are all 0 $ next"}
    made = catalogue.Message("x.py:1", ["", " groups are dead: their advantages are all 0"])
    assert made.example(shown) == "a.txt: grpo: note: 3 groups are dead: their advantages are all 0"
    assert made.example({"b.txt": "nothing"}) == ""
