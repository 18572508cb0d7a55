"""Prints the tables of `grpo help checked`, from tests/golden/agreement.json and others.json.

    python tests/parity/report.py [--all]

One table per framework; without ``--all`` a row with swapped stages is not a line of its own. The
errors of the last table, of frameworks that ran from their sources, are taken here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from agreement import relative_error

from grpo_cli import evaluate

GOLDEN = Path(__file__).parent.parent / "golden"
FILE = GOLDEN / "agreement.json"
OTHERS = GOLDEN / "others.json"
PAIRS = {name: GOLDEN / f"{name}_pairs.json" for name in ("trl", "verl")}
QUANTITIES = ("loss", "policy loss", "gradient", "kl", "clip", "advantages")

KINDS = ("cases", "advantages")


def lines(found: dict[str, Any], *, swapped: bool) -> Iterator[str]:
    """A markdown table per framework: rows, cases, and the largest relative error of each."""
    for framework, rows in found.items():
        shown = {name: row for name, row in rows.items() if swapped or " --" not in name}
        known = {name for row in shown.values() for name in row}
        columns = [name for name in QUANTITIES if name in known] + sorted(known - {*QUANTITIES})
        yield f"| {framework} | cases | " + " | ".join(columns) + " |"
        yield "|---|---:|" + "---:|" * len(columns)
        for name, measured in shown.items():
            cases = next(measured[one]["cases"] for one in columns if one in measured)
            cells = [_cell(measured.get(one)) for one in columns]
            yield f"| `{name}` | {cases} | " + " | ".join(cells) + " |"
        yield ""


def evaluated(golden: dict[str, Any], case: dict[str, Any]) -> Any:
    """What we make of a case."""
    record = golden["batches"][case["batch"]]
    return evaluate(record, case["variant"], stages=case["stages"], **case["hyperparameters"])


def others(
    golden: dict[str, Any], evaluated: Callable[[dict[str, Any], dict[str, Any]], Any] = evaluated
) -> dict[str, Any]:
    """Row → quantity → the largest error, and the cases, of what ran from sources."""
    found: dict[str, Any] = {}
    plain = {case["variant"] for kind in KINDS for case in golden[kind] if not case["stages"]}
    for case in (case for kind in KINDS for case in golden[kind]):
        ours = evaluated(golden, case)
        swapped = "".join(f" --{stage} {name}" for stage, name in case["stages"].items())
        variant = case["variant"]
        row = found.setdefault(variant if variant in plain else variant + swapped, {})
        for name in ("loss", "gradient", "advantages"):
            if name in case:
                entry = row.setdefault(name, {"max_relative_error": 0.0, "cases": 0})
                error = _rounded_up(relative_error(_flat(getattr(ours, name)), _flat(case[name])))
                entry["max_relative_error"] = max(entry["max_relative_error"], error)
                entry["cases"] += 1
    return {"from their sources": dict(sorted(found.items()))}


def _rounded_up(error: float, least: float = 1e-12) -> float:
    """To a power of ten, ``least`` at least: the last digits differ between machines."""
    return float(10.0 ** np.ceil(np.log10(max(error, least))))


def _flat(values: Any) -> Any:
    return np.concatenate([np.atleast_1d(row) for row in values]) if np.iterable(values) else values


def pair_lines(document: dict[str, Any]) -> Iterator[str]:
    """A markdown table of the trainings of a covering array, a line for each loss."""
    errors = ("loss", "gradient", "advantages")
    yield f"| {document['framework']}, options in pairs | pairs | configurations | records | " + (
        "differ | " + " | ".join(errors) + " |"
    )
    yield "|---|" + "---:|" * (4 + len(errors))
    for name, array in document["arrays"].items():
        losses = array["losses"]
        for loss, row in losses.items() if len(losses) > 1 else ():
            yield f"| `{name}` {loss} | | {_pair_cells(row, errors)} |"
        whole = {key: sum(row[key] for row in losses.values()) for key in COUNTS}
        whole |= {key: max(row[key] for row in losses.values()) for key in errors}
        covered = f"{array['pairs']:,} of {array['of']:,}"
        yield f"| `{name}` | {covered} | {_pair_cells(whole, errors)} |"


COUNTS = ("configurations", "records", "differ")


def _pair_cells(row: dict[str, Any], errors: tuple[str, ...]) -> str:
    worst = [f"{_rounded_up(row[name], 1e-15):.0e}" for name in errors]
    return " | ".join([*(str(row[name]) for name in COUNTS), *worst])


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    error = entry["max_relative_error"]
    return "0" if error == 0.0 else f"{error:.0e}"


def tables(measured: dict[str, Any] | None = None, *, swapped: bool) -> Iterator[str]:
    """The lines of all of them; ``measured`` is what ``others`` gives, where that is known."""
    measured = measured or others(json.loads(OTHERS.read_bytes()))
    yield from lines(json.loads(FILE.read_text()) | measured, swapped=swapped)


if __name__ == "__main__":
    print("\n".join(tables(swapped="--all" in sys.argv)))
