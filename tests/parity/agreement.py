"""How far our numbers are from a framework's own, collected over a parity run.

A test compares through ``AGREEMENT.close``; the largest error of every row and quantity is kept,
and ``pytest tests/parity --write-golden`` leaves them in tests/golden/agreement.json, from which
``report.py`` makes the table of ``grpo help checked``.
"""

from __future__ import annotations

import json
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


def write_golden(name: str, content: dict[str, Any]) -> None:
    """Writes tests/golden/NAME.json, one case a line, floats by shortest repr."""
    cases = content.pop("cases")
    head = json.dumps(content, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{name}.json").write_text(f'{head},\n "cases": [\n{lines}\n ]\n}}\n')
