"""How sure a mean is: intervals that count the correlation of neighbours."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.onsets import levels

_BLOCKS, _CLEAR = 6, 3.0
"""Parts of a series whose means show whether it wanders; the least factor of noise of these."""
_LEAST_OF_BLOCK = 3
_ROUNDING = 1e-12
"""Of the largest value: residuals below it are no noise."""


class Estimate(NamedTuple):
    """A number with its standard error, and how many independent values that rests on."""

    value: float
    error: float
    freedom: float

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval that holds the true value at a level."""
        return self.error * t_quantile(0.5 + level / 2, self.freedom)

    def is_beyond(self, level: float) -> bool:
        """Whether it differs from 0 at a level."""
        return abs(self.value) > self.half_width(level)


def mean_of_neighbours(values: F64) -> Estimate:
    """The mean of a series, with an error that counts the correlation of neighbours."""
    error, freedom = _noise(values)
    return Estimate(float(values.mean()), error / math.sqrt(len(values)), freedom)


def walked_mean(values: F64, last: int) -> Estimate:
    """The mean of the last values of a series that wanders off from 0, as two seeds of one run do.

    Its error is that of neighbours' noise and of a random walk, where the means of sixths of the
    series differ by more than three times what noise explains. It is the median of their squared
    differences that counts: what one change adds at once is no walk.
    """
    count = len(values)
    size = max(count // _BLOCKS, 1)
    means = values[count - size * _BLOCKS :].reshape(_BLOCKS, size).mean(axis=1)
    noise = fmean(_median_square(values[lag:] - values[:-lag]) for lag in (1, 2)) / size
    walk = max(_median_square(np.diff(means)) - _CLEAR * noise, 0.0) / size
    steps = count / 3 if last == count else count - last / 2
    mean = mean_of_neighbours(values[-last:])
    return mean._replace(error=math.sqrt(mean.error**2 + walk * steps))


def is_steady_slope(values: F64, level: float) -> bool:
    """Whether a series goes one way all along: means of its sixths differ by equal steps.

    Those of a random walk differ by what has either sign; averages of one correlate by 1/4, which
    makes the variance of the mean of these differences half as large again.
    """
    size = len(values) // _BLOCKS
    if size < _LEAST_OF_BLOCK:
        return False
    moves = np.diff(values[-size * _BLOCKS :].reshape(_BLOCKS, size).mean(axis=1))
    error = float(moves.std(ddof=1)) * math.sqrt(1.5 / len(moves))
    return abs(float(moves.mean())) > error * t_quantile(0.5 + level / 2, len(moves) - 1.0)


def _median_square(values: F64) -> float:
    """The variance of normal values around 0, from the median of their squares."""
    return float(np.median(values**2)) / 0.455


def _noise(values: F64) -> tuple[float, float]:
    """The standard deviation of a series around a line, of independent values, and their number.

    It is raised by the first autocorrelation, itself raised by what a line takes of it,
    (2 + 4 ρ)/n, and by two standard errors: of 22 series that are noise alone, the largest is
    beyond its bound in at most 5 of 100 cases with ρ up to 0.8.
    """
    count, places = len(values), np.arange(len(values)) - (len(values) - 1) / 2
    left = values - values.mean()
    left = left - places * (float(places @ left) / float(places @ places))
    square = float(left @ left)
    rho = 0.0
    if square > (_ROUNDING * float(np.abs(values).max())) ** 2 * count:
        raw = float(left[1:] @ left[:-1]) / square
        rho = min(raw + (2 + 4 * raw) / count, 1.0)
        rho = min(max(rho + 2 * math.sqrt((1 - rho**2) / count), 0.0), 0.99)
    times = (1 + rho) / (1 - rho)
    return math.sqrt(square / (count - 2) * times), max(count / times - 2, 3.0)


def difference_of_means(first: F64, second: F64) -> Estimate:
    """The difference of the means of two samples (Welch, 1947)."""
    parts = [float(one.var(ddof=1)) / len(one) for one in (first, second)]
    error, value = sum(parts), float(second.mean() - first.mean())
    spent = sum(part**2 / (len(one) - 1) for part, one in zip(parts, (first, second), strict=True))
    return Estimate(value, math.sqrt(error), error**2 / spent if spent else 1.0)


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


def robust_size(value: float, others: F64, least: float = 0.0) -> tuple[float | None, float]:
    """By how many standard deviations of other values a value is away from their median.

    The deviation is returned as well: that of their median absolute deviation, or their own where
    more than half of them are equal, and no less than ``least``. None where nothing varies and the
    value is as the others are; infinite where it is not.
    """
    middle, spread = map(float, levels(others))
    spread = max(spread or float(others.std(ddof=1)), least)
    if spread:
        return (value - middle) / spread, spread
    return None if value == middle else math.copysign(math.inf, value - middle), spread
