"""Bugs planted in a loss that the vectors were not made from: are they found, and named?"""

from __future__ import annotations

from .bugs import RATIOS, SURROGATES, Bug
from .bugs_terms import ADVANTAGES, CORRECTIONS, ENTROPIES, KLS, REDUCTIONS
from .trainer import NARROW, RIGHT, WIDE

__all__ = ["BUGS", "NARROW", "RIGHT", "WIDE", "Bug"]

BUGS = (
    *RATIOS,
    *SURROGATES,
    *KLS,
    *CORRECTIONS,
    *ENTROPIES,
    *REDUCTIONS,
    *ADVANTAGES,
)
