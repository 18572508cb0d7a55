"""A case, run in a folder of its own and looked at from all sides."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.case import Case
from fuzz.oracle import OLD, Finding, findings, megabytes
from fuzz.product import run, watched
from fuzz.relations import related


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


def examine(
    case: Case,
    folder: Path,
    seed: object = 0,
    *,
    processes: float = 0.0,
    codes: Counter[str] | None = None,
    thorough: bool | None = False,
) -> list[Finding]:
    """What is wrong with a case.

    Args:
        case: the case.
        folder: the current folder, empty; it is empty again afterwards.
        seed: says which of the relations are looked at.
        processes: for what share of the cases real processes are started too.
        codes: counts the command and its exit code.
        thorough: whether to look at all relations, whatever the seed; None for none.
    """
    try:
        _place(case, folder)
        outcome = run(case.words_for(case.name))
        if codes is not None:
            codes[f"{case.command} {outcome.code}"] += 1
        found = findings(case, outcome, folder)
        if not found and thorough is not None:
            draw = random.Random(f"relations {seed}")
            found = [*related(case, outcome, folder, draw, processes, thorough=thorough)]
        return [one for one in found if not one.kind.endswith(": memory") or _confirmed(case)]
    finally:
        _clear(folder)


def _place(case: Case, folder: Path) -> None:
    (folder / "out").write_bytes(OLD)
    try:
        (folder / case.name).write_bytes(case.data)
    except OSError:  # no name for a file; the command says so too
        return


def _confirmed(case: Case) -> bool:
    """Whether a process of its own takes too much as well."""
    if len(case.data) >= 1 << 20:
        return False
    most = megabytes(case)
    return watched(case.words_for(case.name), most).megabytes > most


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
