"""The values of all conventions on the data, those that are one taken together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import Values
from grpo_cli.commands.match.space.conventions import Index, Space
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
    order: Index
    starts: NDArray[np.int64]
    tried: int

    def names(self, value: int) -> list[int]:
        """The conventions of a value, of fewest bits first."""
        return self.order[self.starts[value] : self.starts[value + 1]].tolist()


def every(space: Space, sums: Sums, batch: str, sign: float) -> tuple[F64, F64]:
    """[C] J (or −J) without what β multiplies, [C] that."""
    policy, kl = np.empty(len(space.bits)), np.empty(len(space.bits))
    for start in range(0, len(policy), _BLOCK):
        part = slice(start, start + _BLOCK)
        policy[part], kl[part], _ = _values(space, sums, batch, part)
    policy *= sign
    kl *= sign
    return policy, kl


_BLOCK = 1 << 15
"""Conventions at a time: what is made on the way takes little memory."""

Chosen = slice | NDArray[np.int64]


def _values(space: Space, sums: Sums, batch: str, part: Chosen) -> tuple[F64, F64, F64]:
    """[n] J without what β multiplies, [n] that, [n] the magnitude of J, of some conventions."""
    columns = {name: column[part] for name, column in space.columns.items()}
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
    own = space.own(part)
    kl = _term(sums.kl, columns["kl"], _or(own["kl_weight"], weight), counted)
    entropy_weight = _or(own["entropy_weight"], weight)
    entropy = _term(sums.entropy, own["entropy"], entropy_weight, counted)
    policy, size = policy + entropy, size + np.abs(entropy)
    if space.options.solve:
        return policy, kl, size + np.abs(space.beta[part] * kl)
    return policy - kl, np.zeros(len(kl)), size + np.abs(kl)


def _or(own: Index, weight: Index) -> Index:
    """The row's own aggregation, or else that of all terms."""
    return np.where(own < 0, weight, own)


def _term(rows: F64, number: Index, weight: Index, counted: F64) -> F64:
    if not len(rows):
        return np.zeros(len(number))
    found = rows[np.maximum(number, 0), weight] / counted[weight]
    return np.where(number < 0, 0.0, found)


def scan(space: Space, sums: Sums, batch: str, policy: F64, kl: F64) -> Scan:
    """Conventions of one policy term, one KL and one β are one value."""
    finite = np.flatnonzero(np.isfinite(policy) & np.isfinite(kl)).astype(np.int32)
    mixed = _mixed(space, sums, batch, (policy, kl), finite)
    order = np.lexsort((space.bits[finite], mixed)).astype(np.int32)
    mixed = mixed[order]
    new = np.ones(len(mixed), np.bool_)
    new[1:] = mixed[1:] != mixed[:-1]
    starts = np.append(np.flatnonzero(new), len(mixed))
    order = finite[order]
    firsts = order[starts[:-1]]
    values = Values(
        policy[firsts],
        kl[firsts],
        np.where(kl[firsts] == 0.0, 0.0, space.beta[firsts]),
        _values(space, sums, batch, firsts)[2],
        space.bits[firsts],
    )
    return Scan(values, order, starts, len(finite))


_NOISE = 2.0**-46
"""Of the magnitude that a sum is made of: below it, it is 0 but for the order of its additions."""


def _mixed(
    space: Space, sums: Sums, batch: str, values: tuple[F64, F64], chosen: Index
) -> NDArray[np.uint64]:
    """[n] a number for each convention, the same for those that are equal but for rounding."""
    mixed = np.zeros(len(chosen), np.uint64)
    for start in range(0, len(chosen), _BLOCK):
        part = mixed[start : start + _BLOCK]
        some = chosen[start : start + _BLOCK]
        policy, kl = (column[some] for column in values)
        size = _values(space, sums, batch, some.astype(np.int64))[2]
        policy = np.where(np.abs(policy) <= _NOISE * size, 0.0, policy)
        beta = np.where(kl == 0.0, 0.0, space.beta[some])
        for column in (policy, kl, beta):
            part[:] = (part ^ _rounded(column).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            part ^= part >> np.uint64(29)
    return mixed


def _rounded(values: F64) -> F64:
    """Values of which those that differ by rounding only are equal, nearly always."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa / _SAME) * _SAME, exponent)) + 0.0


__all__: Sequence[str] = ("Scan", "every", "scan")
