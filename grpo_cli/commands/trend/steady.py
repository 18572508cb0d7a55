"""What goes one way from the first step of a run on: it has no past that it departs from.

Healthy runs drift too: the reward rises, the KL grows, the entropy falls somewhat. So a metric has
to go the way that harms, by the factor of its row of ``watched.TABLE``, and steadily.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.watched import UP, Steady

PARTS, _LEAST_PART = 6, 4
"""Parts of a run whose means are compared, and the least steps of one."""
_ERRORS, _SHARE = 2.0, 0.25
"""The least move from one part to the next, in standard errors, and as a share of the mean move."""


class Moved(NamedTuple):
    """A metric that went one way.

    Attributes:
        seen: how many values of the series show it.
        score: by how many standard errors the last part differs from the first.
        middle: of the levels of these two.
    """

    seen: int
    score: float
    middle: float


def steady_move(scaled: F64, steady: Steady) -> Moved | None:
    """When a series first has gone one way all along, by a factor; None where it never has.

    The values up to one are cut into sixths, and each is beyond the one before. What a longer
    series has at its end does not count, so that what is found stays found.

    Args:
        scaled: [n] the logarithms of the series.
        steady: which way, and by which factor.
    """
    counts = np.arange(PARTS * _LEAST_PART, len(scaled) + 1)
    sizes = counts // PARTS
    values = scaled if steady.way == UP else -scaled
    sums = np.cumsum(np.append(0.0, values))
    edges = (counts - sizes * PARTS)[:, None] + sizes[:, None] * np.arange(PARTS + 1)
    means = np.diff(sums[edges], axis=1) / sizes[:, None]
    moves = np.diff(means, axis=1)
    squares = np.cumsum(np.diff(values) ** 2)[counts - 2] / (counts - 1)
    error = np.sqrt(squares / sizes)
    enough = moves.mean(axis=1) * PARTS >= math.log(steady.factor)
    least = np.maximum(_ERRORS * error, _SHARE * moves.mean(axis=1))
    shown = np.flatnonzero(enough & (moves.min(axis=1) > least))
    if not len(shown):
        return None
    first, last = means[shown[0], 0], means[shown[0], -1]
    middle = (first + last) / 2 * (1 if steady.way == UP else -1)
    score = (last - first) / error[shown[0]] if error[shown[0]] else math.inf
    return Moved(int(counts[shown[0]]), float(score), float(middle))
