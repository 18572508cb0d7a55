"""What an advantage function returns ([R], or ``PerToken``), and the batch statistics it reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64


class PerToken(NamedTuple):
    """Marks advantages that differ between the tokens of a response: values [N]."""

    values: F64


class Moments(NamedTuple):
    """The batch's statistics as the stages read them, one value per response [R].

    ``count`` is the number of elements, ``mean`` their mean and ``squares`` Σ(x − mean)².
    """

    count: F64  # type: ignore[assignment]  # hides tuple.count
    mean: F64
    squares: F64

    def std(self, ddof: int) -> F64:
        """[R] the standard deviation; nan where ``count`` is not greater than ``ddof``."""
        free = self.count - ddof
        return np.sqrt(np.where(free > 0, self.squares / np.where(free > 0, free, 1.0), np.nan))


class Sample(NamedTuple):
    """What the statistics are of: values with multiplicities, per response [R] or token [N]."""

    values: F64
    times: F64
    per_token: bool = False
