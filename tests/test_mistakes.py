"""The catalogue of mistakes: whole, and each hole in it explained."""

from __future__ import annotations

import json

from vectors import make

from grpo_cli.mistakes import flags, mistakes


def test_every_mistake_has_a_sentence_and_a_source() -> None:
    for row in mistakes().values():
        assert row.thread.startswith(("https://", "http://")), row
        assert len(row.bug.strip(".").split()) > 3, row


def test_the_flags_of_the_vectors_are_rows() -> None:
    stored = json.loads((make.TARGET / "flags.json").read_text("utf-8"))["flags"]
    assert stored == {name: {"bug": row.bug, "thread": row.thread} for name, row in flags().items()}
