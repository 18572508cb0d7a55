"""The straight lines from the rewards of groups to their advantages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64

SHIFT = 1e-3
"""How far advantages may be from a line or a mean, over the greatest of them."""
_MOST_EPS = 1.1e-4
"""What trainers add to a std, which changes the scale of rewards that are nearly equal."""
ANOTHER = "another function of the rewards"
FORMULAS = (
    "rewards all equal",
    ANOTHER,
    "a baseline that is not the group's mean",
    "(r − mean) / std with ddof 1",
    "(r − mean) / std with ddof 0",
    "r − mean",
    "r − mean, times another factor",
)


class Scores(NamedTuple):
    """One record's rewards, advantages and groups: [R] each."""

    rewards: F64
    advantages: F64
    groups: I64

    def part(self, rows: Any) -> Scores:
        """Returns some of the rows."""
        return Scores(self.rewards[rows], self.advantages[rows], self.groups[rows])


@dataclass(frozen=True, eq=False)
class Lines:
    """The line from the rewards of each group to its advantages; nothing is left of a good one.

    Attributes:
        slope: [groups] advantage per reward; 0 where the rewards are equal.
        std: [groups, 2] of the rewards (ddof 1 and 0).
        mean: [groups] of the advantages.
        left: [groups] the greatest distance from the line, over the greatest |advantage|.
        offset: [groups] |mean| over the greatest |advantage|.
    """

    slope: F64
    std: F64
    mean: F64
    left: F64
    offset: F64

    @classmethod
    def fit(cls, given: Scores, groups: I64) -> Lines:
        """Returns the lines of groups; of one response infinity is left."""
        of = np.unique(groups, return_inverse=True)[1]
        size = np.bincount(of).astype(np.float64)
        mean = np.bincount(of, given.advantages) / size
        away = given.rewards - (np.bincount(of, given.rewards) / size)[of]
        power = np.bincount(of, away * away)
        differs = power >= 1e-12
        slope = np.where(
            differs, np.bincount(of, away * given.advantages) / np.where(differs, power, 1.0), 0.0
        )
        most, left = np.full((2, len(size)), 1e-300)
        np.maximum.at(most, of, np.abs(given.advantages))
        np.maximum.at(left, of, np.abs(given.advantages - mean[of] - slope[of] * away))
        left = np.where(size < 2, math.inf, left / most)
        std = np.sqrt(power[:, None] / np.maximum(size[:, None] - [[1.0, 0.0]], 1.0))
        return cls(slope, std, mean, left, np.abs(mean) / most)

    def have_scales(self, slope: F64) -> NDArray[np.bool_]:
        """Returns [groups, 3] whether a slope is 1 over the group's std (ddof 1, ddof 0), or 1."""
        scale = 1.0 / np.where(slope > 0.0, slope, math.inf)
        scales = np.column_stack([self.std, np.ones(len(scale))])
        within = 2.0 * SHIFT * scales + _MOST_EPS
        return np.abs(scale[:, None] - scales) <= within

    @property
    def own_std(self) -> NDArray[np.bool_]:
        """[groups] whether the slope is 1 over the group's std, of either ddof."""
        return np.logical_or(*self.have_scales(self.slope).T[:2])

    @cached_property
    def formulas(self) -> NDArray[np.intp]:
        """[groups] the place in ``FORMULAS`` of what advantages follow; −1 of one response."""
        curved, tilted = (self.slope <= 0.0) | (self.left > SHIFT), self.offset > SHIFT
        near = self.have_scales(self.slope)
        kinds = np.column_stack([self.std[:, 1] == 0.0, curved, tilted, near, ~near.any(axis=1)])
        return np.where(np.isfinite(self.left), kinds.argmax(axis=1), -1)

    def follow(self) -> bool:
        """Whether the advantages are the rewards less the groups' means, each over some scale."""
        some = (self.std[:, 1] > 0.0) | ~np.isfinite(self.left)
        right = (self.slope > 0.0) & (self.left <= SHIFT) & (self.offset <= SHIFT)
        return bool(some.any() and right[some].all())
