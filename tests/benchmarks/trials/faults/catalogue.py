"""Every fault that is planted."""

from __future__ import annotations

import csv
from pathlib import Path

from trials.faults.columns import COLUMNS, ENGINES
from trials.faults.rows import GROUPS, JUDGED, TOKENS

_MADE = ENGINES | COLUMNS | TOKENS | JUDGED | GROUPS

with (Path(__file__).parent / "faults.csv").open(encoding="utf-8", newline="") as _stream:
    FAULTS = [_MADE[row["name"]](**row) for row in csv.DictReader(_stream)]
