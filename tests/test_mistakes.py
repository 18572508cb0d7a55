"""The catalogue of mistakes: whole, and each hole in it explained."""

from __future__ import annotations

import re
from pathlib import Path

import grpo_cli.commands.verify.causes as causes
from grpo_cli.mistakes import Mistake, flags, mistakes
from grpo_cli.vectors.likely import failing


def test_every_mistake_has_a_sentence_and_a_source() -> None:
    for row in mistakes().values():
        assert row.thread.startswith(("https://", "http://")), row
        assert len(row.bug.strip(".").split()) > 3, row


def causes_named() -> set[str]:
    """The rows that are written out where ``verify`` looks for causes."""
    files = Path(causes.__path__[0]).glob("*.py")
    words = {word for path in files for word in re.findall(r'"([a-z0-9-]+)"', path.read_text())}
    return words & set(mistakes())


def test_a_mistake_has_a_vector_or_says_why() -> None:
    assert {name for name in mistakes() if failing(name)} == set(flags())


def test_a_mistake_has_a_cause_or_says_why() -> None:
    without = {name for name, row in mistakes().items() if not row.no_cause}
    assert without - causes_named() == set()


def test_a_reason_is_a_sentence() -> None:
    holes = [field for field in Mistake._fields if field.startswith("no_")]
    reasons = {getattr(row, hole) for row in mistakes().values() for hole in holes} - {""}
    assert all(len(reason.split()) > 3 for reason in reasons)
