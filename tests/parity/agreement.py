"""How far our numbers are from a framework's own, collected over a parity run.

A test compares through ``AGREEMENT.close``; the largest error of every row and quantity is kept,
and ``pytest tests/parity --write-golden`` leaves them in tests/golden/agreement.json, from which
``report.py`` makes the table of ``grpo help checked``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent.parent / "golden"
FILE = GOLDEN / "agreement.json"
LIMIT = 1e-9
FLOOR = 1e-7
"""An element smaller than this part of the largest is compared as if it were that large: a sum of
large terms that nearly cancel has no more digits than that, in either program."""


def relative_error(ours: Any, theirs: Any, floor: float = FLOOR) -> float:
    """max |ours − theirs| / |theirs| over the elements; inf where a shape or a NaN differs."""
    left = np.asarray(ours, dtype=np.float64).ravel()
    right = np.asarray(theirs, dtype=np.float64).ravel()
    if left.shape != right.shape or not (np.isfinite(left) == np.isfinite(right)).all():
        return float("inf")
    keep = np.isfinite(right)
    left, right = left[keep], right[keep]
    if not len(right):
        return 0.0
    scale = np.maximum(np.abs(right), floor * np.abs(right).max())
    gap = np.abs(left - right)
    return float(np.where(gap > 0.0, gap / np.where(scale > 0.0, scale, 1.0), 0.0).max())


class Agreement:
    """framework version → row → quantity → the largest error and how many cases were compared."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}

    def close(
        self,
        framework: str,
        row: str,
        quantity: str,
        ours: Any,
        theirs: Any,
        *,
        limit: float = LIMIT,
        floor: float = FLOOR,
        case: object = "",
    ) -> None:
        """Asserts that two numbers or arrays agree to ``limit``, and keeps the error.

        Args:
            framework: name and version, as ``"trl 1.16.0"``.
            row: the variant, as ``"trl/dapo"``, or a stage's choice, as ``"trl/dapo aggregate"``.
            quantity: as ``"loss"``, ``"gradient"``, ``"kl"``, ``"clip"``, ``"advantages"``.
            ours, theirs: a number, an array, or a list of arrays flattened by the caller.
            limit: the largest relative error allowed.
            floor: as ``FLOOR``, where the framework's own rounding is coarser.
            case: what to say of the case when it fails.

        Raises:
            AssertionError: naming the row, the quantity, the case and both values.
        """
        error = relative_error(ours, theirs, floor)
        kept = self.found.setdefault(framework, {}).setdefault(row, {})
        entry = kept.setdefault(quantity, {"max_relative_error": 0.0, "cases": 0, "limit": limit})
        entry["max_relative_error"] = max(entry["max_relative_error"], error)
        entry["cases"] += 1
        assert error <= limit, (
            f"{framework} {row} {quantity} [{case}]: relative error {error:.3g} > {limit:g}\n"
            f"ours   {np.asarray(ours)}\ntheirs {np.asarray(theirs)}"
        )

    def write(self) -> None:
        """Puts what this run compared into the file.

        Other rows and quantities stay, as those of tests that did not run, unless they are of
        another release of a framework that was compared.
        """
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        names = {framework.split()[0] for framework in self.found}
        merged = {k: v for k, v in known.items() if k.split()[0] not in names}
        for framework, rows in self.found.items():
            before = known.get(framework, {})
            merged[framework] = before | {row: before.get(row, {}) | rows[row] for row in rows}
        GOLDEN.mkdir(exist_ok=True)
        FILE.write_text(json.dumps(merged, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


AGREEMENT = Agreement()
"""The run's own; ``conftest.py`` writes it."""


def golden(
    name: str, execute: Callable[[dict[str, Any]], dict[str, Any]], *, writing: bool, **head: str
) -> None:
    """Runs a framework again on the cases of tests/golden/NAME.json, and compares with the file.

    Args:
        name: of the file; a new case has what ``execute`` reads, and anything for what it returns.
        execute: what the framework makes of a case, by the keys that the case has it under.
        writing: takes what was returned into the file instead, one case a line.
        head: what the file says of the release.
    """
    file = GOLDEN / f"{name}.json"
    document = json.loads(file.read_text())
    for number, case in enumerate(document["cases"]):
        found = execute(case)
        if writing:
            case |= _plain(found)
        for key, value in found.items():
            error = _worst(case[key], value)
            assert error < LIMIT, f"{name} case {number}, {key}: relative error {error:.3g}"
    if writing:
        cases = document.pop("cases")
        text = json.dumps(document | head, indent=1, ensure_ascii=False)[:-2]
        lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
        file.write_text(f'{text},\n "cases": [\n{lines}\n ]\n}}\n')


def _worst(kept: Any, found: Any) -> float:
    pairs = zip(_leaves(kept), _leaves(found), strict=True)
    return max((relative_error(*pair) for pair in pairs), default=0.0)


def _leaves(value: Any) -> list[Any]:
    """The numbers and the arrays of a case, in order; a dict's by its keys."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, list):
        return [np.concatenate([np.zeros(0), *(np.ravel(row) for row in value)])]
    return [value]


def _plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [row.tolist() for row in value] if isinstance(value, list) else value
