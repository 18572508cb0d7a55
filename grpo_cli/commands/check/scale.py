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
        """Returns both by quartiles; 0 of fewer than 24 numbers."""
        if len(values) < LEAST_TOKENS:
            return cls(len(values), 0.0, 0.0)
        low, middle, high = np.quantile(values, _QUARTILES).tolist()
        return cls(len(values), middle, (high - low) / _NORMAL)

    def is_alike(self, most: float) -> bool:
        """Returns whether the spread is at most that share of the median."""
        return self.number >= LEAST_TOKENS and self.spread <= most * abs(self.median)


class Scale(NamedTuple):
    """How much surer the first column is than the second.

    A temperature T on the second divides its logits: log-odds x become x/T − (1 − 1/T)·H there,
    H ≥ 0 being an entropy of the other words (Rényi's of the order 1/T). So at sure tokens, where H
    is small against x, the share (x − y)/((x + y)/2) is one number. Training moves sure tokens
    little, and each by another share; a base, or any other factor of log-probs, has one log b/a.

    Attributes:
        odds: the share by which the log-odds of sure tokens differ.
        factor: log(second/first) of the log-probs.
        varied: the spread of log |first|: without it any change looks like a factor.
    """

    odds: Middle
    factor: Middle
    varied: float

    @classmethod
    def of(cls, first: F64, second: F64) -> Scale:
        """Measures a sample."""
        kept = are_clear(first, second)
        a, b = first[kept], second[kept]
        sure = a + b > SURE
        x, y = (_log_odds(column[sure]) for column in (a, b))
        sizes = np.log(-a)
        return cls(
            Middle.of(2.0 * (x - y) / (x + y)),
            Middle.of(np.log(-b) - sizes),
            Middle.of(sizes).spread,
        )


def are_clear(first: F64, second: F64) -> NDArray[np.bool_]:
    """Returns which tokens have enough digits in both columns."""
    found: NDArray[np.bool_] = (first < FEW_DIGITS) & (second < FEW_DIGITS)
    return found


def _log_odds(log_probs: F64) -> F64:
    found: F64 = log_probs - np.log(-np.expm1(log_probs))
    return found
