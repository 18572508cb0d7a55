"""The ε of a number that no usual ε gives: of both bounds, or of one with the other as it is.

A surrogate with a window is |A|·c·(1 + clip(q, −ε_low, ε_high)) of each token, with c its value for
A = ±1 and ε = 0, and c·(1 + q) that without bounds. So J is linear in ε from one |q| to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.match.fit import FLOAT32, Factor
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.match.run import RARE, Candidate, Families, Run
from grpo_cli.commands.match.space.changes import UNBOUND, Change, changed
from grpo_cli.commands.match.space.options import ALONE, Key, policy_key
from grpo_cli.commands.match.space.space import Index
from grpo_cli.commands.match.sums import Terms
from grpo_cli.variants.plan import Plan

_LOW, _HIGH = "epsilon_low", "epsilon_high"
_BITS, _DECIMAL = {2: 5.0, 1: 7.0}, float(np.log2(10.0))
"""What an ε costs that is not usual, of both bounds or of one, and each of its decimals."""
_DECIMALS = 6
"""Of an ε, at most."""
_HUNDREDTH = 0.01
"""J changes with ε by its size at most: chance gives this ε where the digits leave as much."""
_ROOMS = (2.0**-40, FLOAT32)
"""How far off J may be, of the size that it is made of: by running sums, by float32."""
_MOST = 1 << 19
"""Tokens that are looked at, those of the likeliest rows first."""


class Solution(NamedTuple):
    """The roundest ε with which a row gives the number.

    Attributes:
        row, size: the convention, and the magnitude that its number is made of.
        names, value, decimals: the bounds, and the ε.
        bits: what the row costs with such an ε of no decimals.
        room, width: how far off J may be, and the width of all ε with which it is not.
    """

    row: int
    size: float
    names: Sequence[str]
    value: float
    decimals: float
    bits: float
    room: float
    width: float

    @property
    def cost(self) -> float:
        """The bits of the row with its ε."""
        return self.bits + _DECIMAL * self.decimals

    def expected(self, cost: float) -> float:
        """How many ε of the row that cost so much or less give the number by chance."""
        return min(self.width * 2.0 ** (cost - self.bits), 1.0)


def with_epsilon(run: Run, target: LoggedNumber, families: Families) -> Iterator[Candidate]:
    """Yields unmodified rows with an ε that gives the number, the likeliest first.

    The chance of each is how many solutions as likely are expected. What chance may well give is
    left out.
    """
    rows, sizes = _rows(run, target)
    if not len(rows):
        return
    with np.errstate(all="ignore"):
        every = sorted(Windows(run, target).solutions(rows, sizes), key=lambda one: one.cost)
    for room in _ROOMS:
        found = [one for one in every if one.room == room]
        once = {(f"{one.width:.6g}", *one.names): one for one in found}
        listed = False
        for one in found:
            chance = sum(each.expected(one.cost) for each in once.values())
            if chance >= RARE:
                break
            plan = run.space.plan(one.row, Change({}, dict.fromkeys(one.names, one.value)))
            made = Candidate(plan, Factor(1.0), one.cost, one.size, chance)
            if families.add(made):
                listed = True
                yield made
        if listed:
            return


def _rows(run: Run, target: LoggedNumber) -> tuple[Index, F64]:
    """The unmodified rows that the number may single out, the likeliest first, and their sizes."""
    space, scan = run.space, run.scan
    plain = (space.at == 0) & np.isfinite(scan.every) & (space.policy < ALONE)
    rows = np.flatnonzero(plain).astype(np.int32)
    rows = rows[np.argsort(space.bits[rows], kind="stable")]
    sizes = scan.values.size[scan.value_of(rows)]
    some = 2.0 * target.half < RARE * _HUNDREDTH * sizes
    return rows[some], sizes[some]


class Window(NamedTuple):
    """A policy term for A = ±1 as a function of ε; N of its tokens are out of the narrowest window.

    Attributes:
        start, least, most: [R] Σ c, and what the sum is at least and at most, with any ε.
        response: [N] of which response each token is.
        reach, slope: [N] |q|, rising, and c with the sign of q.
        high: [N] whether the upper bound holds it.
        own: [N] |q| within the row's own window.
    """

    start: F64
    least: F64
    most: F64
    response: I64
    reach: F64
    slope: F64
    high: NDArray[np.bool_]
    own: F64


class Windows:
    """The unmodified rows whose surrogate has a window."""

    def __init__(self, run: Run, target: LoggedNumber) -> None:
        self._run, self._target, self._options = run, target, run.space.options
        self._terms = [Terms(self._options, one, run.sums.data) for one in run.sums.data.chunks]
        lengths = [one.batch.responses.lengths for one in self._terms]
        self._responses = Segments(np.concatenate(lengths))
        self._ends = np.cumsum([len(one) for one in lengths])
        self._known: dict[Key, Window] = {}
        self._left = _MOST

    def solutions(self, rows: Index, sizes: F64) -> Iterator[Solution]:
        """Yields the roundest ε of each row in each room: of both bounds, and of each alone."""
        space, scan, target = self._run.space, self._run.scan, self._target
        known: dict[Key, list[tuple[Sequence[str], float, F64, F64]]] = {}
        for row, size in zip(rows.tolist(), sizes.tolist(), strict=True):
            pair, weight = int(space.policy[row]), int(space.weight[row])
            moved = target.sign * (target.value - float(scan.every[row]))
            wanted = pair, weight, float(f"{moved:.12g}")
            if wanted not in known:
                halves = [target.half + room * size for room in _ROOMS]
                known[wanted] = [*self._fitting(pair, weight, moved, halves)]
            made = space.grids[space.grid[row]].plan
            asked = made.takes() - made.flags.keys()
            for names, room, low, high in known[wanted]:
                if asked.issuperset(names):
                    bits = float(space.bits[row]) + _BITS[len(names)]
                    width = float((high - low).sum())
                    yield Solution(row, size, names, *_roundest(low, high), bits, room, width)

    def _fitting(
        self, pair: int, weight: int, moved: float, halves: Sequence[float]
    ) -> Iterator[tuple[Sequence[str], float, F64, F64]]:
        """Yields bounds, a room, and the intervals of their ε that move J by so much."""
        sums = self._run.sums
        advantage, policy = [*self._options.pairs][pair]
        plan = self._options.advantages.plans[advantage]
        advantages = np.concatenate([next(one.advantages([plan])) for one in self._terms])
        window = self._window(np.sign(advantages), policy)
        if window is None:
            return
        counts = sums.counts(self._run.space.grids[0].plan.batch)[weight]
        each = [one.weights([weight]) for one in self._terms]
        shares = np.concatenate([rows[0] / divisor[0] for rows, _, divisor, _ in each])
        weights = np.abs(advantages) * shares / counts
        wanted, most = moved + sums.policy[pair, weight] / counts, halves[-1]
        if not weights @ window.least - most <= wanted <= weights @ window.most + most:
            return
        self._left -= len(window.reach)
        slopes = window.slope * weights[window.response]
        upper, rest = slopes * window.high, wanted - weights @ window.start
        alone = (((_LOW, _HIGH), slopes), ((_HIGH,), upper), ((_LOW,), slopes - upper))
        for names, moving in alone:
            fixed = float(((slopes - moving) * window.own).sum())
            found = intervals(window.reach, moving, rest - fixed, halves)
            for room, (low, high) in zip(_ROOMS, found, strict=False):
                if len(low):
                    yield names, room, low, high

    def _window(self, signs: F64, policy: int) -> Window | None:
        """A policy term for advantages ±1; None if it has no window, or is too much work."""
        plan = self._options.policies.plans[policy]
        plans = [changed(plan, Change({}, one)) for one in (dict.fromkeys(UNBOUND, 0.0), UNBOUND)]
        first = self._terms[0].chunk.objective(plans[0])
        if first.surrogate.choice.window is None:
            return None
        wanted = policy_key(first.ratio, first.surrogate, first.correction), signs.tobytes()
        if (window := self._known.get(wanted)) is None:
            if self._left < 0:
                return None
            self._left -= self._responses.total
            window = self._known[wanted] = self._measured(plans, signs)
        if (*wanted, policy) not in self._known:
            values = [one.chunk.objective(plan).surrogate.values for one in self._terms]
            counts = np.diff(self._ends, prepend=0)
            low, high = (np.repeat([one[name] for one in values], counts) for name in (_LOW, _HIGH))
            epsilon = np.where(window.high, high[window.response], low[window.response])
            own = np.minimum(window.reach, epsilon)
            self._known[*wanted, policy] = window._replace(own=own)
        return self._known[*wanted, policy]

    def _measured(self, plans: Sequence[Plan], signs: F64) -> Window:
        """A window, from its plans at ε = 0 and without bounds."""
        parts = np.split(signs, self._ends[:-1])
        start, free = (
            np.concatenate(
                [
                    terms.policy_terms(terms.chunk.objective(one), part)
                    for terms, part in zip(self._terms, parts, strict=True)
                ]
            )
            for one in plans
        )
        reach = np.divide(free - start, start, out=np.zeros(len(start)), where=start != 0.0)
        some = np.flatnonzero(reach)
        some = some[np.argsort(np.abs(reach[some]))]
        reach, start_of = reach[some], start[some]
        return Window(
            start=self._responses.sum(start),
            least=self._responses.sum(np.minimum(start, free)),
            most=self._responses.sum(np.maximum(start, free)),
            response=self._responses.spread(np.arange(self._responses.count))[some],
            reach=np.abs(reach),
            slope=np.where(reach > 0.0, start_of, -start_of),
            high=reach > 0.0,
            own=np.zeros(0),
        )


def intervals(
    reach: F64, slopes: F64, wanted: float, halves: Sequence[float]
) -> Iterator[tuple[F64, F64]]:
    """Yields for each half where Σ slope·min(reach, ε) is wanted, up to it: [n] the ends of ε.

    Args:
        reach, slopes: [N] the reach rises.
        wanted: the sum.
        halves: how far off it may be, rising.
    """
    moved = slopes * reach
    if not moved[moved < 0.0].sum() <= wanted + halves[-1]:
        return
    if not moved[moved > 0.0].sum() >= wanted - halves[-1]:
        return
    ends = np.append(0.0, reach)
    slope = slopes.sum() - np.append(0.0, np.cumsum(slopes))  # beyond each end
    off = np.append(0.0, np.cumsum(moved)) + slope * ends - wanted
    least, most = np.minimum(off[:-1], off[1:]), np.maximum(off[:-1], off[1:])
    at = np.flatnonzero((least <= halves[-1]) & (most >= -halves[-1]) & (np.diff(ends) > 0.0))
    for half in halves:
        both = ends[at] + (np.array([[-half], [half]]) - off[at]) / slope[at]
        low, high = np.fmax(both.min(axis=0), ends[at]), np.fmin(both.max(axis=0), ends[at + 1])
        yield low[low <= high], high[low <= high]


def _roundest(low: F64, high: F64) -> tuple[float, float]:
    """Of the ε in intervals, the one of fewest decimals, and how many."""
    for decimals in range(1, _DECIMALS + 1):
        least = np.maximum(np.ceil(low * 10.0**decimals), 1.0)
        if (fits := least <= high * 10.0**decimals).any():
            return float(f"{least[fits][0]:.0f}e-{decimals}"), decimals
    return math.nan, math.inf
