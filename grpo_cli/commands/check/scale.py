"""How much surer one column is than another: the same everywhere, or here and there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64

SURE = -0.25
"""The sum of two log-probs from which on a token is sure: probabilities of about 0.88."""
FEW_DIGITS = -1e-5
"""Log-probs closer to 0 have lost the digits of 1 − p in float32."""
LEAST_TOKENS = 24
_UNSURE = -1e-3
_VARIED = 1.5
_LINE_SIGMAS = 5.0
_QUARTILES = (0.25, 0.5, 0.75)
_NORMAL = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""


class Middle(NamedTuple):
    """The median of numbers, and their spread about it as of a normal distribution."""

    number: int
    median: float
    spread: float

    @classmethod
    def of(cls, values: F64) -> Middle:
        """Returns both by quartiles; nothing of fewer than 24 numbers."""
        if len(values) < LEAST_TOKENS:
            return cls(0, 0.0, 0.0)
        low, middle, high = np.quantile(values, _QUARTILES).tolist()
        return cls(len(values), middle, (high - low) / _NORMAL)

    def is_alike(self, most: float) -> bool:
        """Returns whether the spread is at most that share of the median."""
        return self.median != 0.0 and self.spread <= most * abs(self.median)


class Scale(NamedTuple):
    """How much surer the first column is than the second.

    A temperature T on the second divides its logits: log-odds x become x/T − (1 − 1/T)·H there,
    H ≥ 0 being an entropy of the other words (Rényi's of the order 1/T). So the difference is
    within about one nat times the share 1/T − 1 of a line in x; and at sure tokens, where H is
    small against x, the share is one number. Training moves sure tokens little, and each by
    another share; a base, or any other factor of log-probs, has one log b/a.

    Attributes:
        line: the slope of the difference of the log-odds on their mean, and what is left.
        odds: the difference over the mean, of sure tokens.
        factor: log(second/first) of the log-probs.
        varied: the spread of log |first|, by which an offset would spread the factor.
        vanished: the share of tokens that are certain (0.0) in one column and not in the other.
    """

    line: Middle
    odds: Middle
    factor: Middle
    varied: float
    vanished: float

    @classmethod
    def of(cls, first: F64, second: F64) -> Scale:
        """Measures a sample."""
        kept = are_clear(first, second)
        a, b = first[kept], second[kept]
        sure = a + b > SURE
        x, y = (column - np.log(-np.expm1(column)) for column in (a, b))
        middle, distance, sizes = (x + y) / 2.0, x - y, np.log(-a)
        return cls(
            _fit_line(middle, distance),
            Middle.of(distance[sure] / middle[sure]),
            Middle.of(np.log(-b) - sizes),
            Middle.of(sizes).spread,
            float(np.mean((np.maximum(first, second) == 0.0) & (first + second < _UNSURE))),
        )

    def is_factor(self, most: float) -> bool:
        """Returns whether log-probs of all sizes differ by one factor, and not by an offset."""
        return self.factor.is_alike(most * min(self.varied, _VARIED))


def _fit_line(x: F64, y: F64) -> Middle:
    """Returns the slope of y on x and the spread of what is left; nothing if it may be 0."""
    x = x - x.mean() if len(x) else x
    power = float(x @ x)
    slope = float(x @ y) / power if power > 0.0 else 0.0
    left = Middle.of(y - slope * x)
    if abs(slope) * np.sqrt(power) <= _LINE_SIGMAS * left.spread:
        return Middle(0, 0.0, 0.0)
    return Middle(left.number, slope, left.spread)


def are_clear(first: F64, second: F64) -> NDArray[np.bool_]:
    """Returns which tokens differ, and have enough digits in both columns."""
    found: NDArray[np.bool_] = (np.maximum(first, second) < FEW_DIGITS) & (first != second)
    return found
