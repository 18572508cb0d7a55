"""Running the parity of a source again: what ran for each row, and whether its numbers moved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .framework_sources import Clones, in_float64
from .others import write
from .others.inputs import Case, Inputs
from .traced import Functions, of_clones, of_installed

RTOL = 1e-9
DEFAULTS = {
    "trl": (
        "trl/trainer/grpo_config.py:GRPOConfig",
        "trl/trainer/rloo_config.py:RLOOConfig",
    ),
    "verl": (
        "verl/workers/config/actor.py:ActorConfig",
        "verl/workers/config/actor.py:PolicyLossConfig",
    ),
}
"""Configurations whose defaults the rows have."""

Moved = Callable[[str], str]
"""Row → what became of its numbers, in words."""


def _cases(source: str, clones: Clones) -> Iterator[tuple[Case, dict[str, Any], str]]:
    """The cases of one source; a module that loads another one stops at once."""
    for kind, maker, batches in write.made():
        try:
            for case in maker(clones):
                if case[0] == source:
                    yield case, batches, kind
        except KeyError:  # not the source that was given
            continue


def traced_rows(source: str, clones: Clones) -> Functions:
    """Row → the functions that its parity runs."""
    in_float64()
    rows: Functions = {}
    classes: set[str] = set()
    for case, batches, _ in _cases(source, clones._replace(loaded=classes)):
        batch = next(iter(batches.values()))
        for row, names in of_clones(source, [case], batch, Inputs).items():
            rows.setdefault(row, set()).update(names)
    return {row: names | classes for row, names in rows.items()}


def moved(source: str, clones: Clones) -> Moved:
    """Runs the cases of a source and compares them with the golden numbers."""
    in_float64()
    golden = json.loads(write.GOLDEN.read_text())
    known = {_key(case): case for kind in ("cases", "advantages") for case in golden[kind]}
    words: dict[str, str] = {}
    try:
        for case, batches, kind in _cases(source, clones):
            for name, batch in batches.items():
                entry = known[_key({**write.described(case), "batch": name})]
                if not _same(entry, case, batch, kind):
                    words[case[1]] = f"its numbers MOVED ({name} batch)"
                words.setdefault(case[1], "its numbers are the same")
    except Exception as error:  # whatever a new source may do
        broken = f"its parity does not run any more ({error!r:.200})"
        return lambda row: words.get(row, broken)
    return lambda row: words.get(row, "its parity was not run")


def _key(entry: dict[str, Any]) -> str:
    return json.dumps([entry[name] for name in write.NAMED])


def _same(entry: dict[str, Any], case: Case, batch: Any, kind: str) -> bool:
    if kind == "advantages":
        pairs = zip(entry[kind], write.rows_of(batch, case[-1](Inputs(batch))), strict=True)
    else:
        found = write.evaluated(batch, case[-1])
        if not np.isclose(found["loss"], entry["loss"], rtol=RTOL, atol=1e-12):
            return False
        pairs = zip(entry["gradient"], found["gradient"], strict=True)
    return all(np.allclose(old, new, rtol=RTOL, atol=1e-12) for old, new in pairs)


def installed_rows(package: str) -> Functions:
    """Row → the functions of trl or verl that its parity runs."""
    if package == "trl":
        from . import test_trl_async, trl_compare

        runs = {**trl_compare.runs(), **test_trl_async.runs()}
    else:
        from . import test_verl, test_verl_rollout

        runs = {**test_verl.runs(), **test_verl_rollout.runs()}
    defaults = set(DEFAULTS[package])
    return {row: names | defaults for row, names in of_installed(package, runs).items()}


def installed_moved(package: str) -> Moved:
    """Runs the parity tests of trl or verl; a row moved where a test that names it fails."""
    command = [
        "-m",
        "pytest",
        "-q",
        "--tb=no",
        "-rf",
        f"parity/test_{package}.py",
        "-k",
        "not version",
    ]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]

    def words(row: str) -> str:
        row = row.removesuffix(" advantage")
        name = row.partition("/")[2]
        if any(row in line or f"[{name}" in line for line in failed):
            return "its numbers MOVED"
        if ran.returncode not in (0, 1):
            return "its parity does not run any more"
        return "its numbers are the same"

    return words
