"""Prints the README's table of agreement from tests/golden/agreement.json.

    python tests/parity/report.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "golden" / "agreement.json"
QUANTITIES = ("loss", "gradient", "kl", "clip", "advantages")


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The markdown table: one line per framework and row, the largest relative error of each."""
    known = {name for rows in found.values() for row in rows.values() for name in row}
    columns = [name for name in QUANTITIES if name in known] + sorted(known - {*QUANTITIES})
    yield "| framework | variant | cases | " + " | ".join(columns) + " |"
    yield "|---|---|---:|" + "---:|" * len(columns)
    for framework, rows in found.items():
        for row, measured in rows.items():
            cases = max(entry["cases"] for entry in measured.values())
            cells = [_cell(measured.get(name)) for name in columns]
            yield f"| {framework} | `{row}` | {cases} | " + " | ".join(cells) + " |"


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    error = entry["max_relative_error"]
    return "0" if error == 0.0 else f"{error:.0e}"


if __name__ == "__main__":
    print("\n".join(lines(json.loads(FILE.read_text()))))
