"""Bugs planted in a loss that the vectors were not made from: are they found, and named?"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .bugs import RATIOS, SURROGATES
from .bugs_terms import ADVANTAGES, CORRECTIONS, ENTROPIES, KLS, REDUCTIONS
from .trainer import NARROW, RIGHT, WIDE, Trainer

__all__ = ["BUGS", "NARROW", "RIGHT", "STEPS", "WIDE", "Bug", "Trainer"]

STEPS = RATIOS | SURROGATES | KLS | CORRECTIONS | ENTROPIES | REDUCTIONS | ADVANTAGES
"""What is computed instead → the functions of ``trainer`` that are replaced."""


class Bug(NamedTuple):
    """One bug, a row of ``bugs.csv``.

    Attributes:
        what: what is computed instead.
        thread: the issue or pull request that is about it, after ``https://github.com/``.
        mistake: its row in the catalogue of mistakes; "" where it has none.
        steps: the functions that are replaced.
    """

    what: str
    thread: str
    mistake: str
    steps: dict[str, Callable[..., Any]]

    def planted(self) -> Trainer:
        return replace(RIGHT, **self.steps)


with (Path(__file__).parent / "bugs.csv").open(encoding="utf-8", newline="") as _stream:
    BUGS = [Bug(**row, steps=STEPS[row["what"]]) for row in csv.DictReader(_stream)]
