"""A case, run in a folder of its own and looked at from all sides."""

from __future__ import annotations

import os
import shutil
import tempfile
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
