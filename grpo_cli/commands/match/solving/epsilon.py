"""The ε that makes a convention give a number, where nobody tells it.

J of a clipped objective does not fall as ε rises: what a larger ε lets through never counts for
less. So two values of ε between whose J the number lies have one between them that gives it, and
few steps find it. Any convention fits with some ε; it is evidence where that ε is a round number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.candidate import Candidate
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.solving.brackets import Bracket, brackets, distinct
from grpo_cli.commands.match.space.conventions import Space
from grpo_cli.commands.match.typed import Typed
from grpo_cli.errors import GrpoError
from grpo_cli.variants.plan import Plan

_MOST = 60
"""Conventions that it is solved for, the plainest."""


_STEPS, _DIGITS = 40, 6


Values = Callable[[Sequence[Plan]], F64]
"""[n] the losses (or objectives) of plans; nan where one cannot be evaluated."""


def solved(
    made: Space, j: F64, factors: Sequence[Factor], target: Typed, values: Values
) -> list[Candidate]:
    """Plain conventions that give the number with a round ε, the likeliest first.

    Args:
        made: the conventions, with some values of ε.
        j: [C] what each gives.
        factors: what it may be multiplied by.
        target: the number.
        values: evaluates plans.
    """
    found = [
        one
        for one in distinct(brackets(made, j, factors, target))
        if not one.plan(one.ends[0]).wants_moments
    ]
    costs = np.array([one.bits for one in found])
    tried = found[:_MOST]
    candidates = []
    for one, (epsilon, digits) in zip(tried, _round(tried, target, values), strict=True):
        if digits is None:
            continue
        plain = int(np.count_nonzero(costs <= one.bits))
        share = min(2.0 * target.half * one.room * 10.0**digits, 1.0)
        bits = one.bits + digits * float(np.log2(10.0))
        made_of = one.plan(epsilon)
        candidates.append(Candidate(made_of, one.factor, bits, abs(target.value), plain * share))
    return sorted(candidates, key=lambda one: (one.chance, one.bits))


def _round(
    found: Sequence[Bracket], target: Typed, values: Values
) -> list[tuple[float, int | None]]:
    """(ε, its digits behind the point) of each; no digits where no round one gives the number."""
    exact = _bisected(found, target, values)
    result: list[tuple[float, int | None]] = [(float(one), None) for one in exact]
    for digits in range(1, _DIGITS + 1):
        left = [at for at, (_, fits) in enumerate(result) if fits is None]
        rounded = [round(float(exact[at]), digits) for at in left]
        off = _off([found[at] for at in left], rounded, target, values)
        for at, epsilon, far in zip(left, rounded, off.tolist(), strict=True):
            if abs(far) <= 1.000001 * target.half and epsilon > 0:
                result[at] = epsilon, digits
    return result


def _bisected(found: Sequence[Bracket], target: Typed, values: Values) -> F64:
    """The ε that give the number; regula falsi with halving (Illinois), as J has corners."""
    low, high = (np.array([one.ends[end] for one in found]) for end in (0, 1))
    below, above = (np.array([one.values[end] for one in found]) for end in (0, 1))
    middle = low.copy()
    left = np.arange(len(found))
    for _ in range(_STEPS):
        if not len(left):
            return middle
        slope = (above[left] - below[left]) / (high[left] - low[left])
        middle[left] = high[left] - above[left] / slope
        off = _off([found[at] for at in left.tolist()], middle[left].tolist(), target, values)
        same = np.sign(off) == np.sign(below[left])
        above[left], below[left] = (
            np.where(same, above[left] / 2.0, off),
            np.where(same, off, below[left] / 2.0),
        )
        low[left], high[left] = (
            np.where(same, middle[left], low[left]),
            np.where(same, high[left], middle[left]),
        )
        left = left[(np.abs(off) > 0.1 * target.half) & (high[left] - low[left] > 1e-13)]
    return middle


def _off(found: Sequence[Bracket], at: Sequence[float], target: Typed, values: Values) -> F64:
    """What each gives for its ε, less the number; nan where it cannot be evaluated."""
    plans: list[Plan] = []
    places = []
    for number, (one, epsilon) in enumerate(zip(found, at, strict=True)):
        try:
            plans.append(one.plan(epsilon))
            places.append(number)
        except GrpoError:
            continue
    result = np.full(len(found), np.nan)
    times = np.array([found[number].factor.times for number in places])
    result[places] = times * values(plans) - target.value
    return result
