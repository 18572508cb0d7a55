"""Every wrong implementation."""

from __future__ import annotations

import csv
from pathlib import Path

from trials.wrong.mistake import Mistake
from trials.wrong.sums import ADVANTAGES, COLUMNS, REDUCTIONS, TOKENS
from trials.wrong.terms import CLIPS, KLS, RATIOS

PLANTS = ADVANTAGES | RATIOS | CLIPS | KLS | REDUCTIONS | TOKENS | COLUMNS

with (Path(__file__).parent / "mistakes.csv").open(encoding="utf-8", newline="") as _stream:
    MISTAKES = [Mistake(**vars(PLANTS[row["name"]]), **row) for row in csv.DictReader(_stream)]
