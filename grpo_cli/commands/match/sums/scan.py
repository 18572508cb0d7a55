"""The values of all conventions on the data, those that are one taken together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import Values
from grpo_cli.commands.match.space.conventions import Space
from grpo_cli.commands.match.space.options import DIRECT
from grpo_cli.commands.match.sums.add import Sums

_SAME = 2.0**-36
"""Relative difference below which two values are one."""


@dataclass(frozen=True)
class Scan:
    """Distinct values, and the conventions that have each.

    Attributes:
        values: of the distinct ones.
        order: conventions, those of one value side by side, of fewest bits first.
        starts: [U + 1] where those of each value begin.
        tried: how many conventions could be evaluated.
    """

    values: Values
    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    tried: int

    def names(self, value: int) -> list[int]:
        """The conventions of a value, of fewest bits first."""
        return self.order[self.starts[value] : self.starts[value + 1]].tolist()


def every(space: Space, sums: Sums, batch: str) -> tuple[F64, F64, F64]:
    """[C] J without what β multiplies, [C] that, [C] the magnitude of J."""
    columns = space.columns
    counted = sums.counted.copy()
    counted[counted == 0.0] = 1.0
    if batch == "record":
        counted[:] = max(sums.records, 1)
    weight = columns["weight"]
    direct = columns["policy"] >= DIRECT
    pair = np.where(direct, 0, columns["policy"])
    alone = np.where(direct, columns["policy"] - DIRECT, 0)
    some = len(sums.policy) > 0
    by_sign = sums.policy[pair, weight] if some else np.zeros(len(weight))
    size = sums.size[pair, weight] if some else np.zeros(len(weight))
    if len(sums.direct):
        by_sign = np.where(direct, sums.direct[alone, weight], by_sign)
        size = np.where(direct, np.abs(by_sign), size)
    policy, size = by_sign / counted[weight], size / counted[weight]
    kl = _term(sums.kl, columns["kl"], columns["kl_weight"], counted)
    policy = policy + _term(sums.entropy, columns["entropy"], columns["entropy_weight"], counted)
    if space.options.solve:
        return policy, kl, size + np.abs(space.beta * kl)
    return policy - kl, np.zeros(len(kl)), size + np.abs(kl)


def _term(rows: F64, number: NDArray[np.int32], weight: NDArray[np.int32], counted: F64) -> F64:
    if not len(rows):
        return np.zeros(len(number))
    found = rows[np.maximum(number, 0), weight] / counted[weight]
    return np.where(number < 0, 0.0, found)


def scan(space: Space, policy: F64, kl: F64, size: F64) -> Scan:
    """Conventions of one policy term, one KL and one β are one value."""
    finite = np.flatnonzero(np.isfinite(policy) & np.isfinite(kl))
    beta = np.where(kl == 0.0, 0.0, space.beta)
    group = _groups([column[finite] for column in (policy, kl, beta)])
    order = np.lexsort((finite, space.bits[finite], group))
    starts = np.searchsorted(group[order], np.arange(int(group.max(initial=-1)) + 2))
    ordered = finite[order]
    firsts = ordered[starts[:-1]]
    weight = np.bincount(group, weights=2.0 ** -space.bits[finite], minlength=len(firsts))
    values = Values(
        policy[firsts],
        kl[firsts],
        beta[firsts],
        size[firsts],
        space.bits[firsts],
        weight.astype(np.float64),
    )
    return Scan(values, ordered, starts, len(finite))


def _groups(columns: Sequence[F64]) -> NDArray[np.int64]:
    """[n] a number for each row, the same for rows that are equal but for rounding."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ _rounded(column).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    _, group = np.unique(mixed, return_inverse=True)
    return np.asarray(group, np.int64).ravel()


def _rounded(values: F64) -> F64:
    """Values of which those that differ by rounding only are equal, nearly always."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa / _SAME) * _SAME, exponent)) + 0.0


__all__: Sequence[str] = ("Scan", "every", "scan")
