"""A mutant in a copy of the tree, under the tests that may notice it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mutation.covering import environment, tests_of
from mutation.live import NOT_LIVE, Server
from mutation.sites import Mutant

FIRST = 60
"""As many tests are tried before the others that run the line."""
MOST = 300
"""As many are tried of a line that is read on import: those of its file, which may be thousands."""
TABLES = (
    "tests/objective/test_usual.py",
    "tests/commands/test_messages_usage.py::test_what_hyperparameters_may_be",
    "tests/rows/test_report_table.py::test_what_a_narrow_table_goes_without",
)
"""Tests that look at tables, and run no line of their files."""
_BYTES = 8 << 30
_TOO_LONG = "it takes too long"


def copied(root: Path, place: Path) -> Path:
    """A copy of the tree, compiled, without what belongs to version control and caches."""
    ignored = shutil.ignore_patterns(".git", ".*cache*", "__pycache__", ".venv*", "corpus")
    shutil.copytree(root, place, ignore=ignored, symlinks=True)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "."], cwd=place, check=False, capture_output=True
    )
    return place


def verdict(
    place: Path, server: Server, mutant: Mutant, tests: Sequence[str], seconds: float
) -> str:
    """What became of a mutant: ``killed by …``, or ``survived``.

    What survives with its functions exchanged is tried in a copy of the tree as well: what ran on
    import is not run again in the other way.

    Args:
        place: a copy that is this call's own.
        server: the process that has read the tests.
        mutant: what is changed.
        tests: those that run the line and pass without it, the nearest first.
        seconds: how long each round of tests may take.
    """
    text = (place / mutant.path).read_text(encoding="utf-8")
    chosen = [*tests[:FIRST], *spread(tests[FIRST:])]
    said = server.asked(mutant.path, mutant.applied(text), chosen, seconds) if tests else NOT_LIVE
    if said and not said.startswith(NOT_LIVE):
        return f"killed by {said}"
    rounds = [chosen[:FIRST]]
    if said:
        rounds = [[*TABLES], chosen[:FIRST], chosen[FIRST:MOST]]
    if not tests:
        rounds = [by_name(mutant.path, with_processes(place))]
    with applied(place / mutant.path, text, mutant):
        for number, names in enumerate(rounds):
            said = _run(place, names, seconds) if names else ""
            if "not found" in said or (said == _TOO_LONG and not tests):
                return f"not decided: {said}"
            if said and not (said == _TOO_LONG and number):
                return f"killed by {said}"
    return "survived"


@contextmanager
def applied(path: Path, text: str, mutant: Mutant) -> Iterator[None]:
    """A file with a mutant in it, for so long."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_text(mutant.applied(text), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def spread(tests: Sequence[str]) -> list[str]:
    """The same tests, the first of each function before the others."""
    first = {name.partition("[")[0]: name for name in reversed(tests)}
    chosen = set(first.values())
    return sorted(tests, key=lambda name: name not in chosen)


def with_processes(root: Path) -> list[str]:
    """The files of tests that start processes: what they run is not known line by line."""
    words = ("subprocess", "shell", "quick", "multiprocessing", "--jobs", "jobs=")
    return [one for one in tests_of(root) if any(w in (root / one).read_text() for w in words)]


def by_name(path: str, files: Sequence[str]) -> list[str]:
    """Files of tests, those first whose name or folder speaks of what is broken."""
    parts = set(path.removesuffix(".py").split("/")[1:])
    return sorted(files, key=lambda name: not any(part in name for part in parts))


def _run(place: Path, words: Sequence[str], seconds: float) -> str:
    """Runs tests until the first that fails; which one that was, empty where none fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.write("\n".join(words))
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"),
        f"@{file.name}",
    ]
    process = subprocess.Popen(
        command, cwd=place, env=environment(place), stdout=subprocess.PIPE, text=True,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_limit,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return _TOO_LONG
    finally:
        Path(file.name).unlink()
    if process.returncode in (0, 5):
        return ""
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else f"exit code {process.returncode}"


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
