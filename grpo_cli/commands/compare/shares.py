"""Where a gradient goes: to long or short responses, to raised or lowered ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown

_ABOVE, _BELOW, _NONE, _RESPONSES, _TOKENS = range(5)
_SMALLEST = 1074
_UNITS = 1 << _SMALLEST  # every double is a whole number of 2^-1074


class Shares:
    """Σ|gradient| by length of the response and by sign of the advantage, exactly.

    Memory grows with the number of distinct lengths alone. Where the KL has a denominator of its
    own, its part of a token's gradient and the policy's are counted separately.
    """

    def __init__(self) -> None:
        # length → sums in units of the smallest double, by sign; then how many responses
        self._by_length: dict[str, dict[int, list[int]]] = {}
        self._broken = 0.0

    def add(self, breakdown: Breakdown, parts: Mapping[str, F64]) -> None:
        """Adds the parts of a gradient, which have different denominators."""
        responses = breakdown.batch.responses
        positive, negative = breakdown.advantage > 0, breakdown.advantage < 0
        kinds = (positive, negative, ~(positive | negative))
        for name, part in parts.items():
            table, size = self._by_length.setdefault(name, {}), np.abs(part)
            sums = [responses.sum(size * kind).tolist() for kind in kinds]
            for length, *values in zip(responses.lengths.tolist(), *sums, strict=True):
                row = table.setdefault(length, [0, 0, 0, 0])
                row[_RESPONSES] += 1
                for kind, value in enumerate(values):
                    if value:
                        row[kind] += self._units(value)

    def _units(self, value: float) -> int:
        if not math.isfinite(value):
            self._broken += value
            return 0
        whole, divisor = value.as_integer_ratio()
        return whole << (_SMALLEST + 1 - divisor.bit_length())

    def merge(self, later: Shares) -> None:
        """Adds those of data that follow."""
        self._broken += later._broken
        for name, rows in later._by_length.items():
            table = self._by_length.setdefault(name, {})
            for length, row in rows.items():
                mine = table.setdefault(length, [0, 0, 0, 0])
                mine[:] = [one + other for one, other in zip(mine, row, strict=True)]

    def read(self, scale: Callable[[str], float]) -> dict[str, float | None]:
        """The shares of Σ|gradient|; None where there is no gradient.

        The longest quarter of the responses takes 25 % of a gradient that is blind to length;
        among responses of one length that the quarter cuts through, it takes its part of each.
        """
        table = self._scaled(scale)
        whole = float(table[:, :_RESPONSES].sum())
        quarter = _longest(table, 0.25)
        tokens = float(table[:, _TOKENS].sum())
        return {
            "longest_quarter": _of(float(quarter[:_RESPONSES].sum()), whole),
            "longest_quarter_tokens": _of(float(quarter[_TOKENS]), tokens),
            "positive_advantage": _of(float(table[:, _ABOVE].sum()), whole),
            "negative_advantage": _of(float(table[:, _BELOW].sum()), whole),
        }

    def _scaled(self, scale: Callable[[str], float]) -> F64:
        """[lengths, 5] all parts together, the longest first."""
        rows: dict[int, F64] = {}
        for name in sorted(self._by_length):
            for length, (*units, count) in self._by_length[name].items():
                sums = [one / _UNITS * abs(scale(name)) + self._broken for one in units]
                row = rows.setdefault(length, np.array([0.0, 0.0, 0.0, count, count * length]))
                row[:_RESPONSES] += sums
        ordered = [rows[length] for length in sorted(rows, reverse=True)]
        return np.array(ordered, dtype=np.float64).reshape(-1, 5)


def _longest(table: F64, part: float) -> F64:
    """[5] the sum over the longest ``part`` of the responses."""
    room = part * table[:, _RESPONSES].sum()
    taken = np.zeros(5)
    for row in table:
        share = min(1.0, max(room, 0.0) / row[_RESPONSES])
        taken += share * row
        room -= share * row[_RESPONSES]
    return taken


def _of(part: float, whole: float) -> float | None:
    return part / whole if whole else None
