"""The ε or β of a number that no usual one gives, and what the nearest conventions would need.

An ε is of both bounds, or of one with the other as it is. A surrogate with a window is
|A|·c·(1 + clip(q, −ε_low, ε_high)) of each token, with c its value for A = ±1 and ε = 0, and
c·(1 + q) that without bounds. So J is linear in ε from one |q| to the next; in β it is linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.match.answer import Requirement
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.question import LoggedNumber, Question
from grpo_cli.commands.match.run import RARE, Candidate, Families, Run
from grpo_cli.commands.match.space.changes import UNBOUND, Change, changed
from grpo_cli.commands.match.space.options import ALONE, Key, policy_key
from grpo_cli.commands.match.space.space import Index
from grpo_cli.commands.match.sums import Terms
from grpo_cli.commands.solving import Curve, roundest
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.terms import KL
from grpo_cli.variants.plan import Plan

_SIDES = (("epsilon_low", "epsilon_high"), ("epsilon_high",), ("epsilon_low",))
_BITS, _DECIMAL = {2: 5.0, 1: 7.0}, math.log2(10.0)
"""What an ε of both bounds costs that is not usual, that of one or a β, and each decimal."""
_DECIMALS, _LEAST = 6, 1e-6
"""Of a setting, at most, and the least of so many."""
_HUNDREDTH = 0.01
"""J changes with ε by its size at most: chance gives this ε where the digits leave as much."""
_OF_SUMS = 2.0**-40
"""How far off J may be by running sums, of the size that it is made of."""
_FITS, _MOST = 16, 1 << 19
"""Tokens that are looked at, those of the likeliest rows first."""

_LARGE = "large input, so it was solved for in the likeliest variants only"


class Solution(NamedTuple):
    """The β or ε of fewest decimals with which a convention gives the number.

    Attributes:
        row, size: the convention, and the magnitude of its J.
        names: what is set.
        value, decimals: the setting.
        bits: the cost, but for the decimals.
        width: that of all values that give the number.
    """

    row: int
    size: float
    names: Sequence[str]
    value: float
    decimals: int
    bits: float
    width: float

    @classmethod
    def roundest(
        cls, row: int, size: float, names: Sequence[str], low: F64, high: F64, bits: float
    ) -> Iterator[Solution]:
        """Yields the one of fewest decimals in intervals; none where no number above 0 is."""
        value = roundest(np.maximum(low, _LEAST), high) if (high >= _LEAST).any() else 0.0
        decimals = len(f"{value:.12f}".rstrip("0").partition(".")[2])
        if value > 0.0:
            yield cls(row, size, names, value, decimals, bits, float((high - low).sum()))

    @property
    def cost(self) -> float:
        """The bits of the convention with its setting."""
        return self.bits + _DECIMAL * self.decimals

    def expected(self, cost: float) -> float:
        """How many values that cost so much or less give the number by chance."""
        return min(self.width * 2.0 ** (cost - self.bits), 1.0)


def with_setting(run: Run, target: LoggedNumber, families: Families) -> Iterator[Candidate]:
    """Yields unmodified rows with an ε or β that gives the number, the likeliest first.

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
    for room in (_OF_SUMS, target.noise):
        with np.errstate(all="ignore"):
            solved = rows[some], sizes[some], target, room
            found = [*betas(run, *solved), *windows.solutions(*solved)]
        once = {(f"{one.width:.6g}", *one.names): one for one in found}
        listed = False
        round_ones = (one for one in found if one.decimals <= _DECIMALS)
        for one in sorted(round_ones, key=lambda one: one.cost):
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


def betas(
    run: Run, rows: Index, sizes: F64, target: LoggedNumber, room: float
) -> Iterator[Solution]:
    """Yields the roundest β of each convention, where β is solved for: J is linear in it."""
    values, at = run.scan.values, run.scan.value_of(rows)
    for place, row, size in zip(at.tolist(), rows.tolist(), sizes.tolist(), strict=True):
        if kl := float(values.kl[place]):
            exact = np.array([(values.policy[place] - target.value) / kl])
            half = (target.half + room * size) / abs(kl)
            bits = float(run.space.bits[row] + _BITS[1])
            yield from Solution.roundest(row, size, ("beta",), exact - half, exact + half, bits)


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
        """Yields the roundest ε of each convention: of both bounds, and of each alone.

        Args:
            rows, sizes: the conventions, and the magnitudes of their J.
            target: the number.
            room: how far off J may be, of its size.
        """
        space, self._left = self._run.space, _MOST
        for names, (row, size) in product(_SIDES, zip(rows.tolist(), sizes.tolist(), strict=True)):
            made = space.grids[space.grid[row]].plan
            if (made.takes() - made.flags.keys()).issuperset(names) and self._left > 0:
                off = target.sign * (target.value - self._run.scan.every[row])
                low, high = self._fitting(row, names, off, target.half + room * size)
                bits = float(space.bits[row] + _BITS[len(names)])
                yield from Solution.roundest(row, size, names, low, high, bits)

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
        curve = Curve(window.reach, window.slope * weights[window.response])
        return curve.intervals(wanted, half)

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


# ---- what the nearest conventions would need -----------------------------------------------------

_COUNT = 0.01
"""How near a factor is to a number of the records that explains it."""


def add_requirements(run: Run, question: Question) -> None:
    """Says of each of the nearest conventions what would make it give the number, if anything."""
    rows = np.array([one.number for one in run.nearest if one.times == 1.0], np.int32)
    rows = rows[run.space.policy[rows] < ALONE]
    sizes = run.scan.values.size[run.scan.value_of(rows)]
    with np.errstate(all="ignore"):
        solved = [*Windows(run).solutions(rows, sizes, question.target, _OF_SUMS)]
    for one in run.nearest:
        if abs(one.difference) <= question.target.half:
            continue  # another number is what it does not give
        own = question.first.objective(one.plan)
        found = [*_epsilons(own, [each for each in solved if each.row == one.number])]
        found += [*_betas(own, one, question), *_factors(one, question)]
        one.needs = min(found, key=lambda x: abs(math.log(x.value / x.instead)), default=None)


def _epsilons(own: Objective, solved: Sequence[Solution]) -> Iterator[Requirement]:
    for one in solved:
        values = {own.surrogate.values.get(name) for name in one.names}
        value = values.pop()
        if not values and isinstance(value, float) and 0.0 < value < 1.0:
            name = "epsilon" if len(one.names) > 1 else one.names[0]
            yield Requirement(name, one.value, value)


def _betas(own: Objective, one: Candidate, question: Question) -> Iterator[Requirement]:
    """Yields the β that gives the number: J is linear in it."""
    assert one.totals is not None
    target, penalty = question.target, dict(one.totals.parts()).get(KL, 0.0)
    same = {each.objective(one.plan).beta for each in question.data.chunks} == {own.beta}
    if not penalty or not own.beta or own.kl_in_reward or not same:
        return
    more = target.sign * (target.value - one.value) / (one.times * penalty)
    room = target.half / abs(one.times * penalty)
    if 1.0 + more - room > 0.0:
        beta = roundest(own.beta * (1.0 + more - room), own.beta * (1.0 + more + room))
        yield Requirement("beta", beta, own.beta)


def _factors(one: Candidate, question: Question) -> Iterator[Requirement]:
    """Yields what the number would have to be multiplied or divided by, if the records have it."""
    assert one.totals is not None
    factor = question.target.value / one.value if one.value else 0.0
    if factor <= 0.0:
        return
    row, lengths = one.totals.row(), [x.batch.responses.lengths for x in question.data.chunks]
    responses, tokens, groups = (float(row[name]) for name in ("responses", "tokens", "groups"))
    counts = {
        "the mean length": tokens / max(responses, 1.0),
        "the longest length": float(max(x.max(initial=0) for x in lengths)),
        "the number of responses": responses,
        "the number of tokens": tokens,
        "the number of groups": groups,
        "the size of a group": responses / max(groups, 1.0),
    }
    setting, value = ("factor", factor) if factor > 1.0 else ("divisor", 1.0 / factor)
    for meaning, count in counts.items():
        if count > 1.0 + _COUNT and abs(value / count - 1.0) <= _COUNT:
            yield Requirement(setting, value, count, meaning)
