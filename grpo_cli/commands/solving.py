"""Numbers that are solved for: the roundest that fits, and ε; and those of a std that are usual.

A surrogate with a window is w·|A|·(1 + min(q, ε)) on the side where it clips, with q how far the
ratio is from 1. So J is linear in ε from one q to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64

STD_EPS = (1e-4, 1e-6, 1e-8)
"""What TRL, verl and papers add to the std of a group."""
_NEAR = 1e-9
"""Of a step between numbers of so many digits: a number is in an interval that ends so near."""


def roundest(low: F64 | float, high: F64 | float) -> float:
    """The number of the fewest digits in intervals, each of one sign; else a middle.

    Args:
        low, high: [n] the ends of the intervals.
    """
    lows, highs = np.atleast_1d(low), np.atleast_1d(high)
    largest = float(np.maximum(np.abs(lows), np.abs(highs)).max())
    if (lows > highs).any():
        return float(lows[0])
    exponent = int(np.floor(np.log10(largest))) if largest else 0
    for digits in range(12):
        step = 10.0 ** (exponent - digits)
        number = np.ceil(lows / step - _NEAR) * step
        if (fits := number <= highs + _NEAR * step).any():
            return float(f"{number[fits][0]:.12g}")
    return 0.5 * float(lows[0] + highs[0])


class Curve(NamedTuple):
    """What ε adds to J: Σ slope·min(q, ε) over the N tokens with q > 0.

    Attributes:
        reach, slope: [N] q, rising, and w·|A| with its sign in J.
    """

    reach: F64
    slope: F64

    @classmethod
    def of(cls, reach: F64, slope: F64) -> Curve:
        """The curve of tokens in any order; those that no ε changes are left out."""
        some = np.flatnonzero(reach > 0.0)
        some = some[np.argsort(reach[some])]
        return cls(reach[some], slope[some])

    def at(self, epsilon: F64) -> F64:
        """[K] what each ε adds."""
        below = np.concatenate([[0.0], np.cumsum(self.reach * self.slope)])
        above = np.concatenate([[0.0], np.cumsum(self.slope[::-1])])[::-1]
        at = np.searchsorted(self.reach, epsilon)
        bound = np.where(at < len(self.reach), epsilon, 0.0)  # an infinite one adds nothing
        added: F64 = below[at] + bound * above[at]
        return added

    def intervals(self, wanted: float, half: float) -> tuple[F64, F64]:
        """[n] the ends of the intervals of ε that add so much.

        Args:
            wanted: the sum.
            half: how far off it may be.
        """
        moved = self.slope * self.reach
        if not moved[moved < 0.0].sum() - half <= wanted <= moved[moved > 0.0].sum() + half:
            return np.zeros(0), np.zeros(0)
        ends = np.append(0.0, self.reach)
        slope = self.slope.sum() - np.append(0.0, np.cumsum(self.slope))  # beyond each end
        off = np.append(0.0, np.cumsum(moved)) + slope * ends - wanted
        least, most = np.minimum(off[:-1], off[1:]), np.maximum(off[:-1], off[1:])
        at = np.flatnonzero((least <= half) & (most >= -half) & (np.diff(ends) > 0.0))
        both = ends[at] + (np.array([[-half], [half]]) - off[at]) / slope[at]
        return np.fmax(both.min(axis=0), ends[at]), np.fmin(both.max(axis=0), ends[at + 1])
