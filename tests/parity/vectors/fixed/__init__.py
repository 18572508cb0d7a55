"""Bugs planted in a loss that the vectors were not made from: are they found, and named?"""

from __future__ import annotations

from .bugs import RATIOS, SURROGATES, Bug
from .bugs_terms import ADVANTAGES, CORRECTIONS, ENTROPIES, KLS, REDUCTIONS
from .trainer import NARROW, RIGHT, WIDE, Trainer

__all__ = ["BUGS", "NARROW", "RIGHT", "WIDE", "Bug", "Trainer"]

BUGS = (
    *RATIOS,
    *SURROGATES,
    *KLS,
    *CORRECTIONS,
    *ENTROPIES,
    *REDUCTIONS,
    *ADVANTAGES,
)
