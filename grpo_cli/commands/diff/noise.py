"""Whether numbers of two runs differ by rounding, by the noise of an engine, or by a fault."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer

_ROUNDING = 2.0**-18
"""Of the larger of 1 and the number: what single precision leaves of a sum over a vocabulary."""
_MEAN = 0.05
"""The largest mean distance, in nats, that engines in bfloat16 have been reported to have."""
_MOST, _LEAST_FAR, _FLOOR = 100.0, 0.5, 1e-3
"""Times the median distance, and nats: a token that is farther away is no noise, whose tails are
heavy. Distances are divided by 1 − p, as noise of the logits moves a log-prob by so much of it."""
_LEAST = 0.5
"""Of the numbers: noise is nearly everywhere, a fault is somewhere."""
_KNOWN, _GROWN = 200, 4.0
"""Numbers by which the median distance is known, and times that: more is another noise."""
_CENTRED = 5.0
"""Standard errors by which the mean of noise may be away from 0."""


@dataclass
class Noise(Answer):
    """How far a column differs where nothing stands out.

    Attributes:
        column: its name.
        kind: "rounding" where single precision explains it, else "engine".
        numbers, differing: how many were compared, and how many of these differ.
        mean, largest: distance.
    """

    column: str
    kind: Literal["rounding", "engine"] = "rounding"
    numbers: int = 0
    differing: int = 0
    mean: float = 0.0
    largest: float = 0.0
    median: float = 0.0

    def fields(self) -> dict[str, object]:
        """What JSON has of it."""
        return {name: value for name, value in super().fields().items() if name != "median"}

    def outlier(self, first: F64, second: F64, *, engine: bool) -> int | None:
        """The place of the first number that is no noise; else they are added, and None.

        Args:
            first, second: of a record.
            engine: whether they may have an engine's noise: log-probs.
        """
        alike = (first == second) | (np.isnan(first) & np.isnan(second))
        difference = np.where(alike, 0.0, first - second)
        size = np.abs(difference)
        room = _ROUNDING * np.maximum(1.0, np.maximum(np.abs(first), np.abs(second)))
        beyond = ~alike & ~(size <= room)  # NaN is far from every number
        scaled = size / (_FLOOR - np.expm1(np.minimum(first, 0.0)))
        median = float(np.median(scaled)) if len(scaled) else 0.0
        known = self.numbers >= _KNOWN
        if beyond.any():
            grew = known and median > _GROWN * self.median
            if grew or not engine or not _is_noise(difference, first):
                return int(beyond.argmax())
            far = (scaled > _MOST * (self.median if known else median)) & (size > _LEAST_FAR)
            if far.any():
                return int(far.argmax())
            self.kind = "engine"
        self.median += (median - self.median) / (4 if self.numbers else 1)
        self._add(size)
        return None

    def _add(self, size: F64) -> None:
        total = self.mean * self.numbers + float(size.sum())
        self.numbers += len(size)
        self.differing += int(np.count_nonzero(size))
        self.mean = total / self.numbers if self.numbers else 0.0
        self.largest = max(self.largest, float(size.max(initial=0.0)))


def _is_noise(difference: F64, log_probs: F64) -> bool:
    """Whether differences are nearly everywhere, small, around 0, and know no log-prob."""
    count = len(difference)
    if not np.isfinite(difference).all() or np.count_nonzero(difference) < _LEAST * count:
        return False
    square = float(difference @ difference)
    offsets = log_probs - log_probs.mean()
    follows = float(offsets @ difference) ** 2 > _CENTRED**2 * float(offsets**2 @ difference**2)
    centred = abs(float(difference.sum())) <= _CENTRED * math.sqrt(square)
    return float(np.abs(difference).mean()) <= _MEAN and centred and not follows
