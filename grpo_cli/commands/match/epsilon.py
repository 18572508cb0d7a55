"""The ε of a number that no usual ε gives: of both bounds, or of one with the other as it is.

A surrogate with a window is |A|·c·(1 + clip(q, −ε_low, ε_high)) of each token, with c its value for
A = ±1 and ε = 0, and c·(1 + q) that without bounds. So J is linear in ε from one |q| to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.match.fit import FLOAT32, Factor
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.match.run import RARE, Candidate, Families, Run
from grpo_cli.commands.match.space.changes import UNBOUND, Change, changed
from grpo_cli.commands.match.space.options import ALONE, Key, policy_key
from grpo_cli.commands.match.space.space import Index
from grpo_cli.commands.match.sums import Terms
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.variants.plan import Plan

_SIDES = (("epsilon_low", "epsilon_high"), ("epsilon_high",), ("epsilon_low",))
_BITS, _DECIMAL = {2: 5.0, 1: 7.0}, math.log2(10.0)
"""What an ε costs that is not usual, of both bounds or of one, and each of its decimals."""
_DECIMALS = 6
"""Of an ε, at most."""
_HUNDREDTH = 0.01
"""J changes with ε by its size at most: chance gives this ε where the digits leave as much."""
_ROOMS = (2.0**-40, FLOAT32)
"""How far off J may be, of the size that it is made of: by running sums, by float32."""
_FITS, _MOST = 16, 1 << 19
"""Tokens that are looked at, those of the likeliest rows first."""

_LARGE = "large input, so it was solved for in the likeliest variants only"


class Solution(NamedTuple):
    """The ε of fewest decimals, of some bounds, with which a row of a size gives the number.

    Of ``bits`` but for its decimals; ``width`` is that of all ε that do.
    """

    row: int
    size: float
    names: Sequence[str]
    value: float
    decimals: float
    bits: float
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
    space, scan = run.space, run.scan
    plain = (space.at == 0) & np.isfinite(scan.every) & (space.policy < ALONE)
    rows = np.flatnonzero(plain).astype(np.int32)
    rows = rows[np.argsort(space.bits[rows], kind="stable")]
    sizes = scan.values.size[scan.value_of(rows)]
    some = 2.0 * target.half < RARE * _HUNDREDTH * sizes
    windows = Windows(run)
    for room in _ROOMS:
        with np.errstate(all="ignore"):
            found = [*windows.solutions(rows[some], sizes[some], target, room)]
        once = {(f"{one.width:.6g}", *one.names): one for one in found}
        listed = False
        for one in sorted(found, key=lambda one: one.cost):
            chance = sum(each.expected(one.cost) for each in once.values())
            if chance >= RARE:
                break
            plan = space.plan(one.row, Change({}, dict.fromkeys(one.names, one.value)))
            made = Candidate(plan, Factor(1.0), one.cost, one.size, chance)
            if families.add(made):
                listed = True
                yield made
        if listed:
            return


class Window(NamedTuple):
    """A policy term for A = ±1 as a function of ε; N of its tokens are out of the narrowest window.

    Attributes:
        start: [R] Σ c.
        response, reach, slope: [N] of which response each token is; |q|, rising; c with q's sign.
    """

    start: F64
    response: I64
    reach: F64
    slope: F64


class Windows:
    """Rows as functions of ε."""

    def __init__(self, run: Run) -> None:
        self._run, self._options, self._left = run, run.space.options, _MOST
        self._terms = [Terms(self._options, one, run.sums.data) for one in run.sums.data.chunks]
        lengths = [one.batch.responses.lengths for one in self._terms]
        self._responses = Segments(np.concatenate(lengths))
        self._ends = np.cumsum([len(one) for one in lengths])
        self._known: dict[Key, Window] = {}

    def solutions(
        self, rows: Index, sizes: F64, target: LoggedNumber, room: float
    ) -> Iterator[Solution]:
        """Yields the roundest ε of each row: of both bounds, and of each alone.

        Args:
            rows, sizes: the rows, and the magnitudes of their J.
            target: the number.
            room: how far off J may be, of its size.
        """
        space, self._left = self._run.space, _MOST
        for names, (row, size) in product(_SIDES, zip(rows.tolist(), sizes.tolist(), strict=True)):
            made = space.grids[space.grid[row]].plan
            if (made.takes() - made.flags.keys()).issuperset(names) and self._left > 0:
                off = target.sign * (target.value - self._run.scan.every[row])
                low, high = self._fitting(row, names, off, target.half + room * size)
                if len(low):
                    bits, width = space.bits[row] + _BITS[len(names)], (high - low).sum()
                    yield Solution(
                        row, size, names, *_roundest(low, high), float(bits), float(width)
                    )

    def _fitting(self, row: int, names: Sequence[str], off: float, half: float) -> tuple[F64, F64]:
        """The intervals of ε that move J by so much, up to half."""
        options, sums, space = self._options, self._run.sums, self._run.space
        pair, number = space.policy[row], space.weight[row]
        advantage, policy = [*options.pairs][pair]
        given = [options.advantages.plans[advantage]]
        advantages = np.concatenate([next(one.advantages(given)) for one in self._terms])
        each = [one.weights([number]) for one in self._terms]
        weights = np.concatenate([found[0] / divisor[0] for found, _, divisor, _ in each])
        counts = sums.counts(space.grids[0].plan.batch)[number]
        weights *= np.abs(advantages) / counts
        window = None
        with suppress(InputError, HyperparameterError):  # of records whose advantages are 0
            window = self._window(names, np.sign(advantages), options.policies.plans[policy])
        if window is None:
            return np.zeros(0), np.zeros(0)
        wanted = off + sums.policy[pair, number] / counts - weights @ window.start
        return intervals(window.reach, window.slope * weights[window.response], wanted, half)

    def _window(self, names: Sequence[str], signs: F64, plan: Plan) -> Window | None:
        """A policy term for advantages ±1, from its plans at ε = 0 and without bounds.

        None where it has no window, or is too much work.
        """
        plans = [
            changed(plan, Change({}, {name: ends[name] for name in names}))
            for ends in (dict.fromkeys(UNBOUND, 0.0), UNBOUND)
        ]
        first = self._terms[0].chunk.objective(plans[0])
        known = policy_key(first.ratio, first.surrogate, first.correction), names, signs.tobytes()
        if first.surrogate.choice.window is None:
            return None
        self._left -= self._responses.total // _FITS
        if known in self._known:
            return self._known[known]
        if self._known and self._left < self._responses.total:
            self._run.space.reasons.setdefault("epsilon", _LARGE)
            return None
        self._left -= self._responses.total
        parts = [*zip(self._terms, np.split(signs, self._ends[:-1]), strict=True)]
        start, free = (
            np.concatenate([one.policy_terms(one.chunk.objective(each), by) for one, by in parts])
            for each in plans
        )
        reach = np.divide(free - start, start, out=np.zeros(len(start)), where=start != 0.0)
        some = np.flatnonzero(reach)
        some = some[np.argsort(np.abs(reach[some]))]
        response = self._responses.spread(np.arange(self._responses.count))[some]
        slope = np.copysign(1.0, reach[some]) * start[some]
        found = Window(self._responses.sum(start), response, np.abs(reach[some]), slope)
        return self._known.setdefault(known, found)


def intervals(reach: F64, slopes: F64, wanted: float, half: float) -> tuple[F64, F64]:
    """[n] the ends of the intervals of ε in which Σ slope·min(reach, ε) is wanted, up to half.

    Args:
        reach, slopes: [N] the reach rises.
        wanted: the sum.
        half: how far off it may be.
    """
    moved = slopes * reach
    if not moved[moved < 0.0].sum() - half <= wanted <= moved[moved > 0.0].sum() + half:
        return np.zeros(0), np.zeros(0)
    ends = np.append(0.0, reach)
    slope = slopes.sum() - np.append(0.0, np.cumsum(slopes))  # beyond each end
    off = np.append(0.0, np.cumsum(moved)) + slope * ends - wanted
    least, most = np.minimum(off[:-1], off[1:]), np.maximum(off[:-1], off[1:])
    at = np.flatnonzero((least <= half) & (most >= -half) & (np.diff(ends) > 0.0))
    both = ends[at] + (np.array([[-half], [half]]) - off[at]) / slope[at]
    return np.fmax(both.min(axis=0), ends[at]), np.fmin(both.max(axis=0), ends[at + 1])


def _roundest(low: F64, high: F64) -> tuple[float, float]:
    """Of the ε in intervals, the one of fewest decimals, and how many."""
    for decimals in range(1, _DECIMALS + 1):
        least = np.maximum(np.ceil(low * 10.0**decimals), 1.0)
        if (fits := least <= high * 10.0**decimals).any():
            return float(f"{least[fits][0]:.0f}e-{decimals}"), decimals
    return math.nan, math.inf
