"""Every wrong implementation."""

from __future__ import annotations

from dataclasses import replace

from trials.wrong.advantages import ADVANTAGES
from trials.wrong.penalties import PENALTIES
from trials.wrong.ratios import RATIOS
from trials.wrong.reductions import REDUCTIONS

_STAGES = (
    (ADVANTAGES, r"^advantage"),
    (RATIOS, r"^(ratio|surrogate|policy)"),
    (PENALTIES, r"^kl"),
    (REDUCTIONS, r"^(aggregate|mask|tokens?|accumulation|loss|sign)"),
)

MISTAKES = tuple(replace(one, stage=stage) for family, stage in _STAGES for one in family)
