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
from pathlib import Path

from mutation.covering import environment, tests_of
from mutation.sites import Mutant

FIRST = 60
"""As many tests are tried before the others that run the line."""
_BYTES = 8 << 30
_ALL, _TOO_LONG = "all tests", "it takes too long"


def copied(root: Path, place: Path) -> Path:
    """A copy of the tree, compiled, without what belongs to version control and caches."""
    ignored = shutil.ignore_patterns(".git", ".*cache*", "__pycache__", ".venv*", "corpus")
    shutil.copytree(root, place, ignore=ignored, symlinks=True)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "."], cwd=place, check=False, capture_output=True
    )
    return place


def verdict(
    place: Path, mutant: Mutant, tests: Sequence[str], failing: Sequence[str], seconds: float
) -> str:
    """What became of a mutant: ``killed by …``, or ``survived``.

    Args:
        place: a copy that is this call's own.
        mutant: what is changed in it, for so long.
        tests: those that run the line, the nearest first.
        failing: those that fail without it, and say nothing.
        seconds: how long each round of tests may take; one that takes longer is killed.
    """
    path = place / mutant.path
    text = path.read_text(encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_text(mutant.applied(text), encoding="utf-8")
    try:
        for name, words in _rounds(place, tests, failing):
            said = _run(place, words, seconds)
            if said == _TOO_LONG and name == _ALL:
                return "not decided: all tests take too long"
            if "ERROR: not found" in said:  # a test of this name is no longer there
                return f"not decided: {said}"
            if said:
                return f"killed by {name}: {said}"
        return "survived"
    finally:
        path.write_text(text, encoding="utf-8")


def _rounds(
    place: Path, tests: Sequence[str], failing: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """The nearest tests, then the others that run the line; all where none is known to run it.

    A mutant that only a process of its own would notice counts as survived: the figure errs on the
    side that does not flatter.
    """
    if tests[:FIRST]:
        yield "the nearest tests", [*tests[:FIRST]]
    if tests[FIRST:]:
        yield "tests of the line", [*tests[FIRST:]]
    if not tests:
        yield _ALL, [*tests_of(place), *(f"--deselect={one}" for one in failing)]


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
