"""Where a gradient goes: to long or short responses, to raised or lowered ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown

_ABOVE, _BELOW, _NONE, _RESPONSES, _TOKENS = range(5)


class Shares:
    """Σ|gradient| by length of the response and by sign of the advantage.

    Memory grows with the number of distinct lengths alone. Where the KL has a denominator of its
    own, its part of a token's gradient and the policy's are counted one beside the other.
    """

    def __init__(self) -> None:
        self._by_length: dict[str, dict[int, F64]] = {}

    def add(self, breakdown: Breakdown, parts: Mapping[str, F64]) -> None:
        """Adds the parts of a gradient, which have different denominators."""
        responses = breakdown.batch.responses
        lengths, where = np.unique(responses.lengths, return_inverse=True)
        positive, negative = breakdown.advantage > 0, breakdown.advantage < 0
        sizes = np.bincount(where, minlength=len(lengths))
        for name, part in parts.items():
            table, size = self._by_length.setdefault(name, {}), np.abs(part)
            above, below = responses.sum(size * positive), responses.sum(size * negative)
            rest = responses.sum(size * ~(positive | negative))
            sums = [np.bincount(where, one, len(lengths)) for one in (above, below, rest)]
            for at, length in enumerate(lengths.tolist()):
                new = np.array([*(one[at] for one in sums), sizes[at], sizes[at] * length])
                table[length] = table[length] + new if length in table else new

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
        for name, table in self._by_length.items():
            for length, sums in table.items():
                part = sums.copy()
                part[:_RESPONSES] *= abs(scale(name))
                if length in rows:
                    rows[length][:_RESPONSES] += part[:_RESPONSES]
                else:
                    rows[length] = part
        ordered = [rows[length] for length in sorted(rows, reverse=True)]
        return np.array(ordered, dtype=np.float64).reshape(-1, 5)


def _longest(table: F64, part: float) -> F64:
    """[5] the sum over the longest ``part`` of the responses."""
    room = part * table[:, _RESPONSES].sum()
    taken = np.zeros(5)
    for row in table:
        share = min(1.0, room / row[_RESPONSES])
        taken += share * row
        room -= share * row[_RESPONSES]
        if room <= 0:
            break
    return taken


def _of(part: float, whole: float) -> float | None:
    return part / whole if whole else None
