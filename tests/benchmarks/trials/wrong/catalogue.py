"""Every wrong implementation."""

from __future__ import annotations

from dataclasses import replace

from trials.wrong.advantages import ADVANTAGES
from trials.wrong.clips import CLIPS
from trials.wrong.penalties import PENALTIES
from trials.wrong.ratios import RATIOS
from trials.wrong.reductions import REDUCTIONS
from trials.wrong.tokens import TOKENS

_STAGES = (
    (ADVANTAGES, r"^advantage"),
    (RATIOS, r"^(ratio|surrogate|policy)"),
    (CLIPS, r"^(surrogate|policy|clip)"),
    (PENALTIES, r"^kl"),
    (REDUCTIONS, r"^(aggregate|mask|accumulation|loss|sign)"),
    (TOKENS, r"^(aggregate|mask|tokens?)"),
)

MISTAKES = tuple(replace(one, stage=stage) for family, stage in _STAGES for one in family)
