"""Groups that add up quickly."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.arithmetic.groups import Remembered


class Rounded(Remembered):
    """Groups whose sums are rounded as they come, for a search: what it finds is summed again."""

    def offsets(self, values: F64) -> F64:
        """As ``Groups`` has it, but for rounding; exactly 0 where all of a group are equal."""
        return self._once("offsets", values, lambda wanted: self.map(_offsets, wanted)).copy()

    def sum(self, values: F64) -> F64:
        """As ``Groups`` has it, but for rounding."""
        sums = np.bincount(self.index, weights=values, minlength=self.count)
        return sums.astype(np.float64, copy=False)


def _offsets(rows: F64) -> F64:
    rough = rows - rows.mean(axis=1, keepdims=True)
    offsets: F64 = rough - rough.mean(axis=1, keepdims=True)
    offsets[(rows == rows[:, :1]).all(axis=1)] = 0.0
    return offsets
