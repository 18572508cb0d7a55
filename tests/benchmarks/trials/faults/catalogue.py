"""Every fault that is planted."""

from __future__ import annotations

from trials.faults.columns import COLUMNS, ENGINES
from trials.faults.rows import GROUPS, JUDGED, TOKENS
from trials.product import rows

_MADE = ENGINES | COLUMNS | TOKENS | JUDGED | GROUPS

FAULTS = [_MADE[row["name"]](**row) for row in rows(__file__, "faults.csv")]
