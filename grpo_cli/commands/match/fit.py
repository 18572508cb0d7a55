"""The values of all conventions; which give a number, with which sign, factor and β; chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.question import FLOAT32, ROUNDING, LoggedNumber, Question
from grpo_cli.commands.match.space.changes import BETAS, STEPS
from grpo_cli.commands.match.space.options import ALONE
from grpo_cli.commands.match.space.space import Index, Space
from grpo_cli.commands.match.sums import Sums
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.terms import KL
from grpo_cli.variants.plan import Plan

GRID = np.array(sorted(BETAS))
"""The β that are tried, in rising order."""
GRID_BITS = np.array([BETAS[beta] for beta in GRID.tolist()])
_DEARER = 2.0
"""Bits that another β may cost beyond the cheapest that fits: 0.02 is as usual as 0.01."""
_LEVELS = [(bits, GRID[bits == GRID_BITS]) for bits in sorted(set(BETAS.values()))]
"""The β that are tried, by their bits."""


@dataclass(frozen=True)
class Values:
    """U distinct conventions on the data.

    Attributes:
        policy: [U] J without the KL.
        kl: [U] what β multiplies, where β is solved for; else 0.
        beta: [U] the row's own β.
        size: [U] the magnitude that J is made of.
        bits: [U] the bits of the cheapest convention that has the value.
    """

    policy: F64
    kl: F64
    beta: F64
    size: F64
    bits: F64

    @property
    def objective(self) -> F64:
        """[U] J with the row's own β."""
        return self.policy - self.beta * self.kl


# ---- factors -------------------------------------------------------------------------------------

ACCUMULATED = "accumulated micro-batches"
_GIVEN = ("gradient_accumulation_steps", "num_processes", "dp_size", "steps_per_generation")


@dataclass(frozen=True)
class Factor:
    """What a loss is multiplied by.

    Attributes:
        times: the factor; negative for the other sign.
        bits: what it costs.
        meaning: what it means; "" for none.
    """

    times: float
    bits: float = 0.0
    meaning: str = ""


def factors_of(base: Plan, chunk: Chunk) -> list[Factor]:
    """Signs, and factors with a meaning: those that the records give, else usual accumulation."""
    given = {
        name: value
        for name in _GIVEN
        if isinstance(value := {**chunk.settings, **base.flags}.get(name), int) and value >= 1
    }
    counts = {value: (1.0, name) for name, value in given.items() if value > 1}
    if len(given) > 1:
        products = {a * b for a in given.values() for b in given.values()} - counts.keys() - {1}
        counts |= {value: (3.0, " × ".join(given)) for value in sorted(products)}
    if "gradient_accumulation_steps" not in given:
        usual = {count: (bits, ACCUMULATED) for count, bits in STEPS.items()}
        counts = usual | counts
    factors = [Factor(1.0)]
    for count, (bits, meaning) in counts.items():
        factors.append(Factor(1.0 / count, bits, f"÷ {count} ({meaning})"))
        factors.append(Factor(float(count), bits + 1.0, f"× {count} ({meaning})"))
    flipped = [replace(one, times=-one.times, bits=one.bits + 2.0) for one in factors]
    return [*factors, *flipped]


# ---- hits ----------------------------------------------------------------------------------------


def hits(values: Values, factors: Sequence[Factor], target: LoggedNumber) -> NDArray[np.int64]:
    """[3, H] values that are the number, to its digits: value, factor, β's place + 1 (0: own)."""
    parts = [np.zeros((3, 0), np.int64)]
    for at, factor in enumerate(factors):
        off = np.abs(factor.times * values.objective - target.value)
        own = np.flatnonzero(off <= target.half + target.noise * abs(factor.times) * values.size)
        for found, beta in ((own, np.zeros_like(own)), *_solved(values, factor, target)):
            parts.append(np.array([found, np.full(len(found), at), beta]))
    return np.concatenate(parts, axis=1)


def _solved(
    values: Values, factor: Factor, target: LoggedNumber
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Conventions, and round β that make each fit: J is linear in β.

    Of the β that cost the same, the nearest; none that costs over two bits more than the cheapest.
    """
    chosen = np.flatnonzero(values.kl)
    if not len(chosen):
        return
    kl = values.kl[chosen]
    exact = (values.policy[chosen] - target.value / factor.times) / kl
    size = values.size[chosen] + np.abs(values.policy[chosen])
    room = (target.half / abs(factor.times) + target.noise * size) / np.abs(kl)
    some = np.flatnonzero(np.abs(_nearest(GRID, exact) - exact) <= room)
    chosen, exact, room = chosen[some], exact[some], room[some]
    cheapest = np.full(len(chosen), np.inf)
    for bits, grid in _LEVELS:
        nearest = _nearest(grid, exact)
        own = nearest == values.beta[chosen]
        fits = (np.abs(nearest - exact) <= room) & (bits <= cheapest + _DEARER) & ~own
        cheapest[fits & np.isinf(cheapest)] = bits
        yield chosen[fits], np.searchsorted(GRID, nearest[fits]) + 1


def _nearest(grid: F64, wanted: F64) -> F64:
    """The value of the grid that is nearest to each."""
    at = np.searchsorted(grid, wanted)
    below, above = grid[np.maximum(at - 1, 0)], grid[np.minimum(at, len(grid) - 1)]
    return np.where(wanted - below <= above - wanted, below, above)


def rough_bits(off: F64, half: float, size: F64) -> F64:
    """Bits for values that are off by more than the digits allow, as sums in float32 may be.

    Such a number may be anywhere in that wider room: it is the less likely, the wider that is.
    """
    sure = np.maximum(1.000001 * half, ROUNDING * size)
    wider = np.log2(np.maximum(FLOAT32 * size / sure, 16.0))
    return np.where(off > sure, wider, 0.0)


# ---- chance --------------------------------------------------------------------------------------

WINDOW = 0.2
"""The part of the number around it in which tried values are counted,"""
_WIDER = 2.0
"""or so often what its digits leave open: of one digit, that may be half of the number."""
_AT_ITS_END = 1.0 + 2.0**-36
"""A value at the window's very end is in it, whichever way its sum was rounded."""


class Chance:
    """How many conventions hit a number by chance, by their bits at most.

    Counted: the tried values within a fifth of the number on either side, or within twice what its
    digits leave open, times the share of that window which the digits leave open.
    """

    def __init__(self, values: Values, factors: Sequence[Factor], target: LoggedNumber) -> None:
        self._counts = np.zeros(64)
        self._half = target.half
        self._window = max(WINDOW * abs(target.value), _WIDER * target.half)
        for factor in factors if target.value else ():
            self._count(values, factor, target)

    def _count(self, values: Values, factor: Factor, target: LoggedNumber) -> None:
        near = np.abs(factor.times * values.objective - target.value) <= self._window * _AT_ITS_END
        self._add(values.bits[near] + factor.bits, np.ones(int(near.sum())))
        chosen = np.flatnonzero(values.kl)
        kl = values.kl[chosen]
        exact = (values.policy[chosen] - target.value / factor.times) / kl
        room = _AT_ITS_END * self._window / np.abs(factor.times * kl)
        low, high = np.searchsorted(GRID, exact - room), np.searchsorted(GRID, exact + room)
        some = np.flatnonzero(high > low)
        cost = values.bits[chosen[some]] + factor.bits
        for bits, grid in _LEVELS:
            before = np.append(np.searchsorted(grid, GRID, "left"), len(grid))
            inside = before[high[some]] - before[low[some]]
            self._add(cost + bits, inside.astype(np.float64))

    def _add(self, bits: F64, counts: F64) -> None:
        places = np.clip(np.ceil(bits), 0, 63).astype(np.int64)
        self._counts += np.bincount(places, weights=counts, minlength=64)[:64]

    def below(self, bits: float, room: float = 0.0) -> float:
        """Expected hits among conventions of so many bits or fewer.

        Args:
            bits: at most.
            room: how far off a hit may be, where that is more than the digits allow.
        """
        if not self._counts.any():
            return 0.0
        share = min(max(self._half, room) / self._window, 1.0)
        return float(self._counts[: int(np.ceil(bits)) + 1].sum() * share)


# ---- the values of all conventions; equal ones are taken together --------------------------------

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

    def value_of(self, conventions: Index) -> Index:
        """[n] the place of each convention's value."""
        found = np.empty(len(self.every), np.int32)
        counts = np.diff(self.starts)
        found[self.order] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return found[conventions]

    @property
    def tried(self) -> int:
        """How many conventions could be evaluated."""
        return len(self.order)


def scan(space: Space, columns: tuple[F64, F64, F64]) -> Scan:
    """The values of all conventions: what has one policy term, one KL and one β is one value."""
    policy, kl, size = columns
    finite = np.flatnonzero(np.isfinite(policy) & np.isfinite(kl)).astype(np.int32)
    order, starts = _sorted(space, columns, finite)
    firsts = order[starts[:-1]]
    beta = np.where(kl[firsts] == 0.0, 0.0, space.beta[firsts])
    values = Values(policy[firsts], kl[firsts], beta, size[firsts], space.bits[firsts])
    kl *= space.beta
    policy -= kl
    return Scan(policy, values, order, starts)


def evaluate_space(space: Space, sums: Sums, question: Question) -> tuple[F64, F64, F64]:
    """[C] each: J, or the loss, without what β multiplies; that; the magnitude of J."""
    policy, kl, size = (np.empty(len(space.bits)) for _ in range(3))
    for start in range(0, len(space.bits), _BLOCK):
        part = slice(start, start + _BLOCK)
        policy[part], kl[part], size[part] = _values(space, sums, part)
    policy *= question.target.sign
    kl *= question.target.sign
    _evaluate_alone(space, sums, question, (policy, kl, size))
    return policy, kl, size


def _values(space: Space, sums: Sums, part: slice) -> tuple[F64, F64, F64]:
    """[n] J without what β multiplies, [n] that, [n] the magnitude of J, of some conventions."""
    counted = sums.counts(space.grids[0].plan.batch)
    weight = space.weight[part]
    pair = np.where(space.policy[part] == ALONE, 0, space.policy[part])
    some = len(sums.policy) > 0
    policy = sums.policy[pair, weight] if some else np.zeros(len(weight))
    size = sums.size[pair, weight] if some else np.zeros(len(weight))
    policy, size = policy / counted[weight], size / counted[weight]
    of_kl, entropy, of_entropy = (column[space.grid[part]] for column in space.own)
    kl = _term(sums.kl, space.kl[part], np.where(of_kl < 0, weight, of_kl), counted)
    of_entropy = np.where(of_entropy < 0, weight, of_entropy)
    bonus = _term(sums.entropy, entropy, of_entropy, counted)
    policy, size = policy + bonus, size + np.abs(bonus)
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


# ---- what no sums give ---------------------------------------------------------------------------


def _evaluate_alone(space: Space, sums: Sums, question: Question, j: tuple[F64, F64, F64]) -> None:
    """Evaluates rows that sums by response do not give, one by one, as ``grpo eval`` does.

    Those whose policy term depends on the advantages in another way than by their size, and those
    whose correction drops tokens of these records, where the sums have the weights of all tokens.
    What else has such a term is not tried.

    Args:
        space: the conventions.
        sums: over the question's records.
        question: the number and its records.
        j: [C] J, or the loss, without what β multiplies, that, and of what magnitude J is made:
            changed in place.
    """
    alone = (space.policy == ALONE) | _dropping(space, sums)
    policy, kl, size = j
    policy[alone] = np.nan
    sign = question.target.sign
    for row in np.flatnonzero(alone & (space.at == 0)).tolist():
        total = question.data.totals(space.plan(row))
        if total is not None:
            parts = dict(total.parts())
            penalty = parts.pop(KL, 0.0)
            beta = float(space.beta[row])
            solved = space.options.solve and beta != 0.0
            kl[row] = -sign * penalty / beta if solved else 0.0
            policy[row] = sign * (sum(parts.values()) + (0.0 if solved else penalty))
            size[row] = np.abs([*parts.values(), penalty]).sum()


def _dropping(space: Space, sums: Sums) -> NDArray[np.bool_]:
    """[C] the conventions whose correction drops tokens."""
    options = space.options
    policies = [one[2] in sums.left_out for one in options.policies.numbers]  # type: ignore[index]
    pairs = np.array([policies[policy] for _, policy in options.pairs] or [False])
    found: NDArray[np.bool_] = pairs[np.where(space.policy == ALONE, 0, space.policy)]
    return found
