"""Solves for the number of a mistake that explains the gradient, and rounds it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, is_typed
from grpo_cli.objective.breakdown import Breakdown

Flags = NDArray[np.bool_]


class Family(Protocol):
    """What a record gives with a mistake that has this number."""

    def __call__(self, case: Case, number: float) -> Breakdown: ...  # noqa: D102


_STEPS = 8


def roundest(low: float, high: float) -> float:
    """Returns the number of the fewest digits between two that have one sign."""
    if low > 0.0 > high or high < low:
        return low
    exponent = math.floor(math.log10(max(abs(low), abs(high)))) if high or low else 0
    for digits in range(12):
        step = 10.0 ** (exponent - digits)
        number = math.ceil(low / step - 1e-9) * step
        if number <= high + 1e-9 * step:
            return float(f"{number:.12g}")
    return 0.5 * (low + high)


def roundest_near(number: float, room: float = 1e-5) -> float:
    """Returns the number of the fewest digits within a relative ``room`` of another."""
    return roundest(*sorted((number * (1.0 - room), number * (1.0 + room))))


def parametric(
    case: Case, mistake: str, words: str, family: Family, start: float = 1.0
) -> Iterator[Cause]:
    """Yields the mistake with the number that explains the gradient best, if any comes near.

    Args:
        case: the record.
        mistake: its name in the catalogue.
        words: what it is called, with ``{}`` for the number.
        family: evaluates it.
        start: where to begin; 1 means no mistake.
    """
    number = _fitted(case, family, start)
    if number is None or abs(number - 1.0) <= 1e-4:
        return
    for value in dict.fromkeys((roundest_near(number, 2e-5), number)):
        made = partial(family, number=value)
        yield Cause(mistake, words.format(f"{value:.5g}"), made, equal=not is_typed(value))


def _fitted(case: Case, family: Family, start: float) -> float | None:
    """Gauss and Newton's steps on the one number; None where they lead nowhere."""
    wanted = case.gradient
    if wanted is None or not len(wanted):
        return None
    number, left = start, math.inf
    for step in range(_STEPS):
        here = family(case, number).gradient
        off = wanted - here
        size = float(off @ off)
        slope = (family(case, number * (1.0 + 1e-6)).gradient - here) / (number * 1e-6)
        square = float(slope @ slope)
        if not square or not np.isfinite(size + square) or (step > 1 and size > 0.5 * left):
            break
        left, change = size, float(off @ slope) / square
        if abs(change) <= 1e-9 * abs(number):
            break
        number += max(-0.5 * abs(number), min(0.5 * abs(number), change))
    return number if left <= 1e-6 * float(wanted @ wanted) else None
