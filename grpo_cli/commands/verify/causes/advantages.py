"""Advantages that were changed on the way to the loss: turned, moved, clipped, exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause, round_number
from grpo_cli.objective.breakdown import Breakdown

Told = NDArray[np.bool_]
Change = Callable[[F64, F64], F64]
"""[R] advantages and [R] lengths → [R] advantages."""


def _first(a: F64) -> F64:
    return np.full_like(a, a[0]) if a.size else a


def _whitened(a: F64, ddof: int) -> F64:
    return (a - a.mean()) / (a.std(ddof=ddof) + 1e-8)


def _mean_length(n: F64) -> float:
    return max(float(n.mean()), 1.0)


CHANGES: tuple[tuple[str, Change], ...] = (
    ("wrong sign of the advantages", lambda a, _: -a),
    ("sign of the advantages lost: |A| where A is meant", lambda a, _: np.abs(a)),
    ("only positive advantages count: A < 0 is taken as 0", lambda a, _: np.maximum(a, 0.0)),
    ("only negative advantages count: A > 0 is taken as 0", lambda a, _: np.minimum(a, 0.0)),
    ("only the sign of the advantages counts", lambda a, _: np.sign(a)),
    (
        "advantages shifted by one row: each response has that of the one before",
        lambda a, _: np.roll(a, 1),
    ),
    (
        "advantages shifted by one row: each response has that of the one after",
        lambda a, _: np.roll(a, -1),
    ),
    ("advantages in reverse order of the responses", lambda a, _: a[::-1].copy()),
    ("the first response's advantage is used for all", lambda a, _: _first(a)),
    ("advantages centred on their median", lambda a, _: a - np.median(a)),
    ("advantages centred on their mean", lambda a, _: a - a.mean()),
    ("advantages whitened (ddof 1): normalised over the record", lambda a, _: _whitened(a, 1)),
    ("advantages whitened (ddof 0): normalised over the record", lambda a, _: _whitened(a, 0)),
    (
        "advantages divided by the std of the record's advantages",
        lambda a, _: a / (a.std(ddof=1) + 1e-8),
    ),
    (
        "advantages weighted by length: A times the response's tokens over their mean",
        lambda a, n: a * n / _mean_length(n),
    ),
    ("advantages weighted by length: A times the response's tokens", lambda a, n: a * n),
    (
        "advantages weighted by length: A divided by the response's tokens",
        lambda a, n: a / np.maximum(n, 1),
    ),
)
"""In the order in which they are tried; the simplest first."""


def changed(case: Case) -> Iterator[Cause]:
    """Each of the changes that has no number to be solved for."""
    if _per_response(case) is not None:
        for words, change in CHANGES:
            yield Cause("advantage", words, partial(_with, change=change))


def _per_response(case: Case) -> F64 | None:
    return case.breakdown.response_advantage


def _with(case: Case, change: Change) -> Breakdown:
    a = _per_response(case)
    if a is None:
        raise ValueError("advantages differ within a response")
    with np.errstate(invalid="ignore", divide="ignore"):
        return case.judged(change(a, case.batch.responses.lengths.astype(np.float64)))


def other_sign(case: Case) -> Iterator[Cause]:
    """The sign where advantages differ within a response, and that of rewards."""
    if case.batch.token_advantages is not None:
        yield Cause("advantage", "wrong sign of the advantages", _negated)
    if case.batch.rewards is not None and not case.objective.advantage.choice.given:
        yield Cause("advantage", "wrong sign of the rewards", _rewards_negated)


def _negated(case: Case) -> Breakdown:
    return case.judged(-case.breakdown.advantage)


def _rewards_negated(case: Case) -> Breakdown:
    batch = case.batch
    assert batch.rewards is not None
    return case.evaluated(replace(batch, rewards=-batch.rewards))


# ---- solved from the gradient -------------------------------------------------------------------


def effective(case: Case) -> F64 | None:
    """[R] the advantage that explains each response's gradient; NaN where that tells nothing.

    Every surrogate of the family is proportional to A on either side of 0, so the gradient with
    A = 1 and with A = −1 says what any A gives. None where a response is explained by no A.
    """
    wanted, a = case.expected_policy_gradient, _per_response(case)
    if wanted is None or a is None or case.gradient is None:
        return None
    responses, silent = case.batch.responses, case.without_policy.gradient
    ones = np.ones(responses.count)
    noise = case.tolerance.rtol * float(np.abs(case.gradient).max(initial=0.0))
    solved, left = np.full(responses.count, np.nan), np.full(responses.count, np.inf)
    for sign in (1.0, -1.0):
        slope = case.judged(sign * ones).gradient - silent
        square = responses.sum(slope * slope)
        size = responses.sum(slope * wanted) / np.where(square > 0, square, 1.0)
        misfit = np.abs(wanted - responses.spread(size) * slope)
        worst = np.array([part.max(initial=0.0) for part in np.split(misfit, responses.starts[1:])])
        better = (size >= 0) & (square > 0) & (worst < left)
        solved, left = np.where(better, sign * size, solved), np.where(better, worst, left)
    told = responses.lengths > 0
    return solved if (left[told & np.isfinite(left)] <= 3.0 * noise).all() else None


def solved(case: Case) -> Iterator[Cause]:
    """What has a number to be found first: a bound, an offset, another order."""
    found, a = effective(case), _per_response(case)
    if found is None or a is None:
        return
    moving = case.batch.responses.sum(np.abs(case.policy_gradient)) > case.quiet
    told = np.isfinite(found) & (moving | (found == 0.0))
    yield from _clipped(a, found, told)
    if np.count_nonzero(told) < 3:
        return
    yield from _offset(a, found, told)
    yield from _by_length(case, a, found, told)
    yield from _exchanged(a, found, told)


def _clipped(a: F64, found: F64, told: Told) -> Iterator[Cause]:
    bound = float(np.abs(found[told]).max(initial=0.0))
    short = told & (np.abs(a) > bound * 1.001)
    if not short.any():
        return
    bound = float(np.median(np.abs(found[short])))
    if np.count_nonzero(short) > 1 or round_number(bound):
        yield Cause(
            "advantage",
            f"advantages clipped to ±{bound:.4g}",
            partial(_with, change=lambda a, _: np.clip(a, -bound, bound)),
        )


def _offset(a: F64, found: F64, told: Told) -> Iterator[Cause]:
    by = float(np.median((found - a)[told]))
    if by:
        yield Cause(
            "advantage",
            f"advantages shifted by a constant: A {'+' if by > 0 else '−'} {abs(by):.6g}",
            partial(_with, change=lambda a, _: a + by),
        )


def _by_length(case: Case, a: F64, found: F64, told: Told) -> Iterator[Cause]:
    lengths = case.batch.responses.lengths.astype(np.float64)
    loud = told & (np.abs(a * found) > 0) & (lengths > 0)
    if np.unique(lengths[loud]).size < 2:
        return
    for power, said in ((1.0, "times"), (-1.0, "divided by")):
        scale = float(np.median(found[loud] / (a[loud] * lengths[loud] ** power)))
        words = f"advantages weighted by length: A {said} the response's tokens, times {scale:.5g}"
        change = partial(_powered, power=power, scale=scale)
        yield Cause("advantage", words, partial(_with, change=change))


def _powered(a: F64, n: F64, power: float, scale: float) -> F64:
    return a * np.maximum(n, 1.0) ** power * scale


def _exchanged(a: F64, found: F64, told: Told) -> Iterator[Cause]:
    """Each response with the advantage of another."""
    apart = np.abs(a[None, :] - found[:, None])
    source = np.where(told, np.argmin(np.where(np.isnan(apart), np.inf, apart), axis=1), -1)
    own = np.abs(a - found) <= 1e-3 * np.abs(a).max()
    source = np.where(own | ~told, np.arange(len(a)), source)
    moved = np.flatnonzero(source != np.arange(len(a)))
    if not len(moved):
        return
    at = int(moved[0])
    words = (
        f"advantages in another order: {len(moved)} of {len(a)} responses have that of another "
        f"response (response {at} that of response {int(source[at])})"
    )
    yield Cause("advantage", words, partial(_with, change=lambda a, _: a[source]))
