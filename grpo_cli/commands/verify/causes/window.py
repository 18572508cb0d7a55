"""The two bounds of a clip, solved for: which tokens have a gradient, and what the others add."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.verify.causes.case import Case, Cause, round_number
from grpo_cli.commands.verify.causes.clips import bounded, right
from grpo_cli.objective.breakdown import Breakdown

Picked = NDArray[np.bool_]


class Side(NamedTuple):
    """One bound on the ratio.

    Attributes:
        least, most: between which ratios the gradients say that it lies.
        clipped: [N] the tokens that it binds.
        slope: ∂J/∂bound, the sum of w·A over them.
    """

    least: float
    most: float
    clipped: Picked
    slope: float


def windows(case: Case) -> Iterator[Cause]:
    """The ε_low and ε_high that give the gradient and the loss together."""
    surrogate, wanted = case.objective.surrogate, case.expected_policy_gradient
    if surrogate.choice.window != "product" or wanted is None or case.loss is None:
        return
    own = tuple(float(surrogate.values[name] or 0.0) for name in ("epsilon_low", "epsilon_high"))
    alive = np.abs(wanted) > case.quiet
    under, over = _side(case, alive, -1.0), _side(case, alive, 1.0)
    if under is None or over is None:
        return
    rest = case.loss - _without(case, under.clipped | over.clipped)
    for low, high in _solved(under, over, rest, *own):
        told = _within(under, 1.0 - low) and _within(over, 1.0 + high)
        seen = not (_within(under, 1.0 - own[0]) and _within(over, 1.0 + own[1]))
        words = _words(low, high, *own)
        # an ε that moves no token in or out is fitted to the loss alone: believed if it is round
        if told and words and (seen or (round_number(low) and round_number(high))):
            clip = partial(_clip, low=low, high=high)
            yield Cause("surrogate", words, clip)


def _clip(case: Case, low: float, high: float) -> Breakdown:
    return bounded(case, right, lambda *_: (1.0 - low, 1.0 + high))


def _side(case: Case, alive: Picked, turn: float) -> Side | None:
    """What the tokens of one sign of A say; None where no bound could give it.

    Tokens whose gradient is too small to tell are clipped where the ratios of others say so.
    """
    b = case.breakdown
    ratio, mine = turn * b.ratio, turn * b.advantage > 0
    loud = mine & (np.abs(b.token_weight * b.ratio * b.advantage) > 3.0 * case.quiet)
    inner = float(ratio[loud & alive].max(initial=-np.inf))
    outer = float(ratio[loud & ~alive].min(initial=np.inf))
    if outer < inner:
        return None
    clipped = mine & (ratio >= outer)
    least, most = sorted((turn * inner, turn * outer))
    return Side(least, most, clipped, float((b.token_weight * b.advantage)[clipped].sum()))


def _without(case: Case, clipped: Picked) -> float:
    """J without the clipped tokens' policy terms."""
    b = case.breakdown
    free = (b.token_weight * b.ratio * b.advantage)[~clipped].sum()
    return float(free) + float(case.without_policy.record_objective[0])


def _solved(
    under: Side, over: Side, rest: float, low: float, high: float
) -> Iterator[tuple[float, float]]:
    """under.slope·(1 − ε_low) + over.slope·(1 + ε_high) = rest, with one thing changed."""
    rest -= under.slope + over.slope
    if over.slope:
        yield low, (rest + under.slope * low) / over.slope
    if under.slope:
        yield (over.slope * high - rest) / under.slope, high
    if both := over.slope - under.slope:
        yield rest / both, rest / both
    if both := over.slope * high - under.slope * low:
        yield low * rest / both, high * rest / both


def _within(side: Side, bound: float) -> bool:
    return side.least <= bound <= side.most


def _words(low: float, high: float, own_low: float, own_high: float) -> str:
    changes = []
    for name, value, meant in (("epsilon_low", low, own_low), ("epsilon_high", high, own_high)):
        if abs(value - meant) > 1e-4 * max(abs(meant), 1e-6):
            changes.append(f"{name} {value:.4g} where {meant:g} is meant")
    return ", ".join(changes)
