"""How sure a mean is: intervals that count the correlation of neighbours."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64

_MAD = 1.4826
"""The standard deviation of normal noise, in median absolute deviations."""


class Estimate(NamedTuple):
    """A number with its standard error, and how many independent values that rests on."""

    value: float
    error: float
    freedom: float

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval that holds the true value at a level."""
        return self.error * t_quantile(0.5 + level / 2, self.freedom)


def mean_of_neighbours(values: F64) -> Estimate:
    """The mean of a series, with an error that counts its first autocorrelation.

    The estimated autocorrelation is raised by its known bias, (1 + 4 ρ)/n.
    """
    count, offsets = len(values), values - values.mean()
    square = float(offsets @ offsets)
    if not square:
        return Estimate(float(values.mean()), 0.0, count - 1)
    raw = float(offsets[1:] @ offsets[:-1]) / square
    rho = min(max(raw + (1 + 4 * raw) / count, 0.0), 0.99)
    times = (1 + rho) / (1 - rho)
    error = math.sqrt(square / (count - 1) * times / count)
    return Estimate(float(values.mean()), error, max(count / times - 1, 1.0))


def t_quantile(share: float, freedom: float) -> float:
    """The quantile of Student's t: exact for 1 and 2 degrees of freedom, else Cornish–Fisher's."""
    if freedom < 1.5:
        return math.tan(math.pi * (share - 0.5))
    if freedom < 2.5:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def robust_size(value: float, others: F64) -> float | None:
    """By how many standard deviations of other values a value is away from their median.

    The deviation is that of their median absolute deviation, or their own where more than half of
    them are equal. None where the others do not vary and the value is as they are; infinite where
    it is not.
    """
    middle = float(np.median(others))
    spread = _MAD * float(np.median(np.abs(others - middle))) or float(others.std(ddof=1))
    if spread:
        return (value - middle) / spread
    return None if value == middle else math.copysign(math.inf, value - middle)
