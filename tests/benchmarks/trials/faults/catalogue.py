"""Every fault that is planted."""

from __future__ import annotations

from trials.faults.columns import COLUMNS
from trials.faults.engines import ENGINES
from trials.faults.groups import GROUPS
from trials.faults.judged import JUDGED
from trials.faults.tokens import TOKENS

FAULTS = (*ENGINES, *COLUMNS, *TOKENS, *JUDGED, *GROUPS)
