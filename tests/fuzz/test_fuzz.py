"""Hostile files through every command: what ``oracle.py`` asks for holds.

    FUZZ=100000 FUZZ_SEED=7 pytest -n auto tests/fuzz

Hypothesis makes what fails smaller, prints it as a file of ``corpus/`` has it, and tries it first
the next time.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from files import MORE, some
from hypothesis import HealthCheck, given, note, seed, settings

from fuzz import tables, words
from fuzz.case import CORPUS, Case, cases, kept
from fuzz.changes import names, objects, usable
from fuzz.oracle import OLD, Finding, findings, megabytes, related
from fuzz.product import run, watched

INPUTS = int(os.environ.get("FUZZ", "160" if MORE else "80"))
SEED = int(os.environ.get("FUZZ_SEED", "20"))
SHARDS = 4 if INPUTS < 1000 else 32
ADDRESSES = 6 << 30
"""What may be mapped: beyond it the product gets a MemoryError."""


@pytest.fixture
def folder() -> Iterator[Path]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, before[1]))
    names(), usable()  # not while hypothesis draws: they run commands
    with sandbox() as place:
        yield place
    resource.setrlimit(resource.RLIMIT_AS, before)


KEPT = sorted(CORPUS.glob("*.json"), key=lambda place: ('"match"' in place.read_text(), place))
"""Those of match, which searches for seconds, are the last: .ci/run has them."""


@pytest.mark.parametrize("place", some(KEPT, 7), ids=lambda place: place.stem)
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
    text = " ".join([*objects(), *tables.KINDS])
    assert not [name for name in names()["formats"][1:] if name not in text]
    assert {*words.READ_NO_FILES} < words.EVERY.keys()


def test_what_was_kept_is_printed_as_it_is_kept() -> None:
    place = min(CORPUS.glob("*.json"))
    printed = json.loads(repr(kept(place)))
    assert printed == {key: json.loads(place.read_text())[key] for key in printed}


@contextmanager
def sandbox() -> Iterator[Path]:
    """A folder in memory, where there is one, that is the current one for a while."""
    before = Path.cwd()
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=place) as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def examine(case: Case, folder: Path, *, thorough: bool | None = False) -> list[Finding]:
    """What is wrong with a case.

    Args:
        case: the case.
        folder: the current folder, empty; it is empty again afterwards.
        thorough: whether to look at all relations, or at those that the case's seed says; None
            for none.
    """
    try:
        (folder / "out").write_bytes(OLD)
        _place(case, folder)
        outcome = run(case.words_for(case.name))
        found = findings(case, outcome, folder)
        if not found and thorough is not None:
            found = [*related(case, outcome, folder, thorough=thorough)]
        return [one for one in found if not one.kind.endswith(": memory") or _confirmed(case)]
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _place(case: Case, folder: Path) -> None:
    try:
        (folder / case.name).write_bytes(case.data)
    except OSError:  # no name for a file; the command says so too
        return


def _confirmed(case: Case) -> bool:
    """Whether a process of its own takes too much as well."""
    most = megabytes(case)
    return len(case.data) < 1 << 20 and watched(case.words_for(case.name), most).megabytes > most
