"""Advantages that were changed by a number, or exchanged: solved for from the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.advantages import judged, per_response
from grpo_cli.commands.verify.causes.case import Case, Cause, round_number

Told = NDArray[np.bool_]


def effective(case: Case) -> F64 | None:
    """[R] the advantage that explains each response's gradient; NaN where that tells nothing.

    Every surrogate of the family is proportional to A on either side of 0, so the gradient with
    A = 1 and with A = −1 says what any A gives. None where a response is explained by no A.
    """
    wanted, a = case.expected_policy_gradient, per_response(case)
    if wanted is None or a is None or case.gradient is None:
        return None
    responses = case.batch.responses
    noise = case.tolerance.rtol * float(np.abs(case.gradient).max(initial=0.0))
    solved, left = np.full(responses.count, np.nan), np.full(responses.count, np.inf)
    for sign, slope in zip((1.0, -1.0), case.unit_slopes, strict=True):
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
    found, a = effective(case), per_response(case)
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
            partial(judged, change=lambda a, _: np.clip(a, -bound, bound)),
        )


def _offset(a: F64, found: F64, told: Told) -> Iterator[Cause]:
    by = float(np.median((found - a)[told]))
    if by:
        yield Cause(
            "advantage",
            f"advantages shifted by a constant: A {'+' if by > 0 else '−'} {abs(by):.6g}",
            partial(judged, change=lambda a, _: a + by),
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
        yield Cause("advantage", words, partial(judged, change=change))


def _powered(a: F64, n: F64, power: float, scale: float) -> F64:
    return a * np.maximum(n, 1.0) ** power * scale


def _exchanged(a: F64, found: F64, told: Told) -> Iterator[Cause]:
    """Each response with the advantage of another."""
    apart = np.abs(a[None, :] - found[:, None])
    nearest = np.argmin(np.where(np.isnan(apart), np.inf, apart), axis=1)
    own = np.abs(a - found) <= 1e-3 * np.abs(a).max()
    source = np.where(own | ~told, np.arange(len(a)), nearest)
    moved = np.flatnonzero(source != np.arange(len(a)))
    if not len(moved):
        return
    at = int(moved[0])
    words = (
        f"advantages in another order: {len(moved)} of {len(a)} responses have that of another "
        f"response (response {at} that of response {int(source[at])})"
    )
    yield Cause("advantage", words, partial(judged, change=lambda a, _: a[source]))
