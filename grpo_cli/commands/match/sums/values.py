"""The values of all conventions on the data; equal ones are taken together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import Values
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.space.options import DIRECT
from grpo_cli.commands.match.space.space import Index, Space
from grpo_cli.commands.match.sums.exact import exactly
from grpo_cli.commands.match.sums.sums import Sums
from grpo_cli.commands.match.sums.terms import Measured
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.terms import KL

_SAME = 2.0**-36
"""Relative difference below which two values are equal."""
_NOISE = 2.0**-46
"""Of the magnitude that a sum is made of: below it, it is 0 but for the order of its additions."""
_BLOCK = 1 << 15
"""Conventions at a time, so that intermediate arrays take little memory."""


@dataclass(frozen=True)
class Scan:
    """Distinct values, and the conventions that have each.

    Attributes:
        every: [C] the value of each convention, J or −J; nan where it cannot be evaluated.
        values: the distinct ones.
        order: conventions, those of one value side by side, of fewest bits first.
        starts: [U + 1] the first of each value in ``order``.
    """

    every: F64
    values: Values
    order: Index
    starts: NDArray[np.int64]

    @property
    def tried(self) -> int:
        """How many conventions could be evaluated."""
        return len(self.order)


def scan(space: Space, sums: Sums, batch: str, question: Question, measured: Measured) -> Scan:
    """The values of all conventions: what has one policy term, one KL and one β is one value.

    Args:
        space: the conventions.
        sums: over the question's records.
        batch: which records form one batch.
        question: the number and its records.
        measured: the statistics of its records.
    """
    policy, kl, size = (np.empty(len(space.bits)) for _ in range(3))
    for start in range(0, len(space.bits), _BLOCK):
        part = slice(start, start + _BLOCK)
        policy[part], kl[part], size[part] = _values(space, sums, batch, part)
    policy *= question.target.sign
    kl *= question.target.sign
    _evaluate_dropping(space, sums, question, measured, (policy, kl))
    finite = np.flatnonzero(np.isfinite(policy) & np.isfinite(kl)).astype(np.int32)
    order, starts = _sorted(space, (policy, kl, size), finite)
    firsts = order[starts[:-1]]
    beta = np.where(kl[firsts] == 0.0, 0.0, space.beta[firsts])
    values = Values(policy[firsts], kl[firsts], beta, size[firsts], space.bits[firsts])
    kl *= space.beta
    policy -= kl
    return Scan(policy, values, order, starts)


def _values(space: Space, sums: Sums, batch: str, part: slice) -> tuple[F64, F64, F64]:
    """[n] J without what β multiplies, [n] that, [n] the magnitude of J, of some conventions."""
    counted = np.where(sums.counted == 0.0, 1.0, sums.counted)
    if batch == "record":
        counted[:] = max(sums.records, 1)
    weight = space.weight[part]
    direct = space.policy[part] >= DIRECT
    pair = np.where(direct, 0, space.policy[part])
    alone = np.where(direct, space.policy[part] - DIRECT, 0)
    some = len(sums.policy) > 0
    policy = sums.policy[pair, weight] if some else np.zeros(len(weight))
    size = sums.size[pair, weight] if some else np.zeros(len(weight))
    if len(sums.direct):
        policy = np.where(direct, sums.direct[alone, weight], policy)
        size = np.where(direct, np.abs(policy), size)
    policy, size = policy / counted[weight], size / counted[weight]
    own = space.own(part)
    kl_weight, entropy_weight = (
        np.where(own[name] < 0, weight, own[name]) for name in ("kl_weight", "entropy_weight")
    )
    kl = _term(sums.kl, space.kl[part], kl_weight, counted)
    entropy = _term(sums.entropy, own["entropy"], entropy_weight, counted)
    policy, size = policy + entropy, size + np.abs(entropy)
    if space.options.solve:
        return policy, kl, size + np.abs(space.beta[part] * kl)
    return policy - kl, np.zeros(len(kl)), size + np.abs(kl)


def _term(rows: F64, number: Index, weight: Index, counted: F64) -> F64:
    if not len(rows):
        return np.zeros(len(number))
    found = rows[np.maximum(number, 0), weight] / counted[weight]
    return np.where(number < 0, 0.0, found)


def _sorted(
    space: Space, columns: tuple[F64, F64, F64], chosen: Index
) -> tuple[Index, NDArray[np.int64]]:
    """Conventions by value and bits, and where each value starts."""
    hashed = np.empty(len(chosen), np.uint64)
    for start in range(0, len(chosen), _BLOCK):
        part = slice(start, start + _BLOCK)
        hashed[part] = _hashed(space, columns, chosen[part])
    order = np.lexsort((space.bits[chosen], hashed)).astype(np.int32)
    hashed = hashed[order]
    new = np.ones(len(hashed), np.bool_)
    new[1:] = hashed[1:] != hashed[:-1]
    return chosen[order], np.append(np.flatnonzero(new), len(hashed))


def _hashed(space: Space, columns: tuple[F64, F64, F64], chosen: Index) -> NDArray[np.uint64]:
    """[n] a hash of each convention's value, equal for those that differ by rounding alone."""
    policy, kl, size = (column[chosen] for column in columns)
    policy = np.where(np.abs(policy) <= _NOISE * size, 0.0, policy)
    beta = np.where(kl == 0.0, 0.0, space.beta[chosen])
    hashed = np.zeros(len(chosen), np.uint64)
    for column in (policy, kl, beta):
        mantissa, exponent = np.frexp(column)
        rounded = np.asarray(np.ldexp(np.round(mantissa / _SAME) * _SAME, exponent)) + 0.0
        hashed = (hashed ^ rounded.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
    return hashed


# ---- corrections that take tokens out of a denominator, or of the KL -----------------------------


def _evaluate_dropping(
    space: Space, sums: Sums, question: Question, measured: Measured, j: tuple[F64, F64]
) -> None:
    """Replaces the values of conventions whose correction drops tokens of these records.

    The sums have the weights of all tokens. So rows with such corrections are evaluated one by
    one, and what else has them is not tried.

    Args:
        space: the conventions.
        sums: over the question's records.
        question: the number and its records.
        measured: the statistics of its records.
        j: [C] J, or the loss, without what β multiplies, and that: changed in place.
    """
    wrong = _dropping(space, sums)
    if not wrong.any():
        return
    policy, kl = j
    rows = np.flatnonzero(wrong & (space.at == 0)).tolist()
    policy[wrong] = np.nan
    sign = question.target.sign
    numbers = [space.options.advantage_of(int(space.policy[row])) for row in rows]
    evaluators = [
        Evaluator(space.plan(row), measured.get(number))
        for row, number in zip(rows, numbers, strict=True)
    ]
    for row, total in zip(rows, exactly(evaluators, question.data), strict=True):
        if total is not None:
            parts = total.parts()
            penalty = parts.pop(KL, 0.0)
            beta = float(space.beta[row])
            solved = space.options.solve and beta != 0.0
            kl[row] = -sign * penalty / beta if solved else 0.0
            policy[row] = sign * (sum(parts.values()) + (0.0 if solved else penalty))


def _dropping(space: Space, sums: Sums) -> NDArray[np.bool_]:
    """[C] the conventions whose correction drops tokens."""
    options = space.options
    policies = [one[2] in sums.left_out for one in options.policies.numbers]  # type: ignore[index]
    pairs = np.array([policies[policy] for _, policy in options.pairs] or [False])
    alone = [one[1][2] in sums.left_out for one in options.directs.numbers]  # type: ignore[index]
    directs = np.array(alone or [False])
    direct = space.policy >= DIRECT
    of_pair = pairs[np.where(direct, 0, space.policy)]
    return np.where(direct, directs[np.where(direct, space.policy - DIRECT, 0)], of_pair)
