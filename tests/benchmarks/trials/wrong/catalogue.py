"""Every wrong implementation."""

from __future__ import annotations

from trials.product import rows
from trials.wrong.mistake import Mistake
from trials.wrong.sums import ADVANTAGES, COLUMNS, REDUCTIONS, TOKENS
from trials.wrong.terms import CLIPS, KLS, RATIOS

PLANTS = ADVANTAGES | RATIOS | CLIPS | KLS | REDUCTIONS | TOKENS | COLUMNS

MISTAKES = [Mistake(**vars(PLANTS[row["name"]]), **row) for row in rows(__file__, "mistakes.csv")]
