"""The catalogue of mistakes: whole, and each hole in it explained."""

from __future__ import annotations

import re
from pathlib import Path

from files import rows_of
from trials.wrong.catalogue import MISTAKES

from grpo_cli import mistakes as catalogue
from grpo_cli.mistakes import flags, mistakes
from grpo_cli.vectors import cases

CAUSES = Path(catalogue.__file__).parent / "commands/verify/causes"
QUOTED = re.compile(r'"([a-z]+(?:-[a-z0-9]+)*)(?:[.]([a-z0-9]+))?"')


def test_every_mistake_has_a_sentence_and_a_source() -> None:
    for row in mistakes().values():
        assert row.thread.startswith(("https://", "http://")), row
        assert len(row.bug.strip(".").split()) > 3, row


def test_what_the_vectors_are_flagged_with_may_be_found_by_them() -> None:
    assert {flag for case in cases() for flag in case.flags} <= set(flags())


def test_verify_has_a_cause_for_every_mistake_or_the_row_says_why_not() -> None:
    text = "".join(path.read_text("utf-8") for path in CAUSES.glob("*.py"))
    keys = {(name, variant) for name, variant in QUOTED.findall(text) if name in mistakes()}
    named = {name for name, _ in keys}
    named |= {name for name in mistakes() if name.startswith("other-") and 'f"other-{' in text}
    assert named == {name for name, row in mistakes().items() if not row.no_cause}
    worded = {(row.name, variant) for row in mistakes().values() for variant in row.words}
    assert worded <= keys


def test_the_experiment_plants_every_mistake_or_the_row_says_why_not() -> None:
    turns = Path(__file__).parent / "data" / "turns"
    planted = {row["row"] for path in turns.glob("*.csv") for row in rows_of(path)}
    planted |= {plant.row for plant in MISTAKES}
    assert planted == {name for name, row in mistakes().items() if not row.no_plant}
