"""Prints the README's tables of agreement from tests/golden/agreement.json.

    python tests/parity/report.py [--all]

One table per framework; without ``--all`` a row with swapped stages is not a line of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "golden" / "agreement.json"
QUANTITIES = ("loss", "policy loss", "gradient", "kl", "clip", "advantages")


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


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    error = entry["max_relative_error"]
    return "0" if error == 0.0 else f"{error:.0e}"


if __name__ == "__main__":
    print("\n".join(lines(json.loads(FILE.read_text()), swapped="--all" in sys.argv)))
