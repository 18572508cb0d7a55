"""Hostile files through every command: what ``oracle.py`` and ``relations.py`` ask for holds.

    FUZZ=100000 FUZZ_SEED=7 pytest -n auto tests/fuzz

Hypothesis makes what fails smaller, prints it as a file of ``corpus/`` has it, and tries it first
the next time.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from files import some
from hypothesis import HealthCheck, given, note, seed, settings

from fuzz import beginnings, tables, words
from fuzz.case import CORPUS, Case, cases, kept
from fuzz.examine import examine, sandbox
from fuzz.product import BLOCK, blocks_of

INPUTS = int(os.environ.get("FUZZ", "160"))
SEED = int(os.environ.get("FUZZ_SEED", "20"))
SHARDS = 4 if INPUTS < 1000 else 32
ADDRESSES = 6 << 30
"""What may be mapped: beyond it the product gets a MemoryError."""


@pytest.fixture
def folder() -> Iterator[Path]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, before[1]))
    beginnings.names(), beginnings.usable()  # not while hypothesis draws: they run commands
    with sandbox() as place:
        yield place
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    "place", some(sorted(CORPUS.glob("*.json")), 29), ids=lambda place: place.stem
)
def test_what_was_kept(place: Path, folder: Path) -> None:
    """Nothing is wrong with an input that once broke the product; match takes its time."""
    case = kept(place)
    assert not examine(case, folder, thorough=None if case.command == "match" else True)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_inputs(shard: int, folder: Path) -> None:
    @seed(SEED * 1000 + shard)
    @settings(max_examples=INPUTS // SHARDS, suppress_health_check=[*HealthCheck])
    @given(cases())
    def nothing_is_wrong(case: Case) -> None:
        note(f"as a file of corpus/: {case!r}")
        assert examine(case, folder) == []

    nothing_is_wrong()


def test_every_format_has_its_inputs() -> None:
    """A format that is added is fuzzed from then on, as commands and flags are."""
    text = " ".join([*beginnings.objects(), *tables.KINDS])
    assert not [name for name in beginnings.names()["formats"][1:] if name not in text]
    assert {*words.READ_NO_FILES} < words.EVERY.keys()


def test_what_was_kept_is_printed_as_it_is_kept() -> None:
    place = min(CORPUS.glob("*.json"))
    printed = json.loads(repr(kept(place)))
    assert printed == {key: json.loads(place.read_text())[key] for key in printed}


def test_blocks_of_another_size_reach_the_reader() -> None:
    """The defaults that say how large a block is are found wherever they stand."""
    with blocks_of(1) as changed:
        assert changed
    assert BLOCK > 1
