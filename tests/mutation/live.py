"""Mutants in a process that has read all tests once: a child for each, its functions exchanged.

A plugin of pytest: instead of running the tests it reads jobs from one pipe and answers in another.
Reading the package and the tests takes longer than most tests that notice a mutant, so it is done
once. What is run on import cannot be exchanged afterwards: those mutants get a copy of the tree.
"""

from __future__ import annotations

import functools
import gc
import inspect
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

HANG = 60
"""Seconds after which a test has hung."""
NOT_LIVE = "not live"
JOBS, ANSWERS = "MUTANT_JOBS", "MUTANT_ANSWERS"
Key = tuple[str, int]
Live = dict[Key, list[FunctionType]]
Pairs = list[tuple[CodeType, CodeType]]


class Server:
    """The process that has read the tests, seen from outside; one job at a time."""

    def __init__(self, root: Path, package: str, left_out: Sequence[str]) -> None:
        jobs, self._jobs = os.pipe()
        self._answers, answers = os.pipe()
        path = os.pathsep.join((str(root), str(root / "tests")))
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        environment |= {JOBS: f"{jobs} {package}", ANSWERS: str(answers)}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "mutation.live", "-p", "no:xdist"),
                *("-p", "no:cacheprovider", f"--basetemp={root}/../of-{root.name}", "tests"),
                *(f"--ignore=tests/{one}" for one in left_out),
            ],
            cwd=root, env=environment, pass_fds=(jobs, answers), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(jobs)
        os.close(answers)
        self._reader = os.fdopen(self._answers)

    def asked(self, path: str, text: str, tests: Sequence[str], seconds: float) -> str:
        """What a file with another text came to: empty, a test that fails, or ``not live``."""
        job = {"path": path, "text": text, "tests": list(tests), "seconds": seconds}
        with os.fdopen(os.dup(self._jobs), "w") as pipe:
            pipe.write(json.dumps(job) + "\n")
        return str(
            json.loads(self._reader.readline() or json.dumps(f"{NOT_LIVE}: the server ended"))
        )

    def close(self) -> None:
        """Ends the process."""
        os.close(self._jobs)
        self._process.wait()
        self._reader.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Answers jobs until their pipe ends."""
    if JOBS not in os.environ:
        return None
    number, package = os.environ.pop(JOBS).split()
    items = {one.nodeid: one for one in session.items}
    folder = session.config._tmp_path_factory.getbasetemp()
    gc.unfreeze()  # or what conftest.py put aside is not among what is found
    live, caches = _functions(Path(package).resolve())
    gc.freeze()
    with os.fdopen(int(number)) as jobs, os.fdopen(int(os.environ.pop(ANSWERS)), "w") as answers:
        for line in jobs:
            job = json.loads(line)
            tests = [items[one] for one in job["tests"] if one in items]
            said = _answer(job, tests, live, caches)
            answers.write(json.dumps(said) + "\n")
            answers.flush()
            for place in folder.iterdir():
                shutil.rmtree(place, ignore_errors=True)
    return True


def _answer(job: dict[str, Any], tests: list[pytest.Item], live: Live, caches: list[Any]) -> str:
    """The first of the tests that fails with the mutant and passes without."""
    pairs = _exchanged(job["path"], job["text"])
    functions = [(live.get(_key(old), []), new) for old, new in pairs]
    if not functions or not functions[0][0]:
        return NOT_LIVE
    until = time.monotonic() + job["seconds"]
    while tests:
        at = _child(tests, functions, caches, until)
        if at is None:
            return ""
        if _child(tests[at : at + 1], [], caches, time.monotonic() + HANG) is None:
            return tests[at].nodeid
        tests = tests[at + 1 :]  # it fails, or hangs, without the mutant too
    return ""


def _child(tests: list[pytest.Item], functions: Any, caches: list[Any], until: float) -> int | None:
    """The place of the first test that fails or hangs, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.close(reader)
        _run(tests, functions, caches, writer)
    os.close(writer)
    begun, said = 0, b"."
    while said.endswith(b".") and time.monotonic() < until:
        waiting, _, _ = select.select([reader], [], [], HANG)
        said = os.read(reader, 1 << 16) if waiting else b""
        begun += said.count(b".")
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            end(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    return None if said.endswith((b".", b"E")) else max(begun - 1, 0)


def _run(tests: list[pytest.Item], functions: Any, caches: list[Any], writer: int) -> None:
    """The child: tells ``.`` where a test begins, ``F`` where one fails, ``E`` at the end."""
    try:
        for function, new in ((one, new) for found, new in functions for one in found):
            function.__code__ = new
        for one in caches:
            one.cache_clear()
        for item, after in zip(tests, [*tests[1:], None], strict=True):
            os.write(writer, b".")
            if any(one.failed for one in runtestprotocol(item, nextitem=after, log=False)):
                os.write(writer, b"F")
                os._exit(1)
        os.write(writer, b"E")
    finally:
        os._exit(0)


def _functions(package: Path) -> tuple[Live, list[Any]]:
    """The package's functions by their code, and its caches."""
    live: Live = defaultdict(list)
    caches = []
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(package)):
            live[_key(one.__code__)].append(one)
        elif isinstance(one, functools._lru_cache_wrapper) and package.name in str(one.__module__):
            caches.append(one)
    return live, caches


def _key(code: CodeType) -> Key:
    """A function's name and where its instructions stand: of the same text the same."""
    return code.co_qualname, hash((code.co_filename, tuple(code.co_positions())))


def _exchanged(path: str, text: str) -> Pairs:
    """The functions that the new text changes, as they were and as they are, outermost first.

    Nothing where it changes what is run on import as well.
    """
    place = Path(path).resolve()
    old = compile(place.read_text(encoding="utf-8"), str(place), "exec", dont_inherit=True)
    new = compile(text, str(place), "exec", dont_inherit=True)
    return _pairs(old, new) or []


def _pairs(old: CodeType, new: CodeType) -> Pairs | None:
    """The same of one level; None where it is not its functions that differ."""
    inside_old, inside_new = _inside(old), _inside(new)
    is_function = bool(old.co_flags & inspect.CO_NEWLOCALS)  # neither a module nor a class
    if not is_function and (len(inside_old) != len(inside_new) or _itself(old) != _itself(new)):
        return None
    found = [(old, new)] if is_function else []
    for before, after in zip(inside_old, inside_new, strict=False):
        if before != after:
            deeper = _pairs(before, after)
            if deeper is None:
                return None
            found += deeper
    return found


def _inside(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _itself(code: CodeType) -> tuple[object, ...]:
    constants = tuple(repr(one) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_code, code.co_names, constants
