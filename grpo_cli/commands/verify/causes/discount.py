"""Advantages discounted by position; the factor is solved for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.breakdown import Breakdown

Places = Callable[[Segments], I64]


def _from_start(responses: Segments) -> I64:
    return np.arange(responses.total) - responses.spread(responses.starts)


def _from_end(responses: Segments) -> I64:
    lengths: I64 = responses.spread(responses.lengths)
    return lengths - 1 - _from_start(responses)


_PLACES: tuple[tuple[str, Places], ...] = (
    ("towards the start of each response", _from_end),
    ("towards the end of each response", _from_start),
)


def discounted(case: Case) -> Iterator[Cause]:
    """A·γ^k, k the tokens behind or before a token."""
    for words, places in _PLACES:
        gamma = _gamma(case, places(case.batch.responses))
        if gamma is not None and not 0.999999 < gamma < 1.000001:
            said = f"advantages discounted {words}: A times {gamma:.5g} per position"
            yield Cause("advantage", said, partial(_with, places=places, gamma=gamma))


def _with(case: Case, places: Places, gamma: float) -> Breakdown:
    return case.judged(case.breakdown.advantage * gamma ** places(case.batch.responses))


def _gamma(case: Case, places: I64) -> float | None:
    """What the gradient of the response that says most would have γ be; bisected."""
    wanted, ours = case.expected_policy_gradient, case.policy_gradient
    responses = case.batch.responses
    if wanted is None or not ours.any() or case.breakdown.response_advantage is None:
        return None
    many = responses.lengths >= 3
    square = np.where(many, responses.sum(ours * ours), 0.0)
    row = int(np.argmax(square))
    if not square[row] or case.objective.ratio.choice.per_response:
        return _of_row(wanted, ours, places, responses, row) if square[row] else None
    return _of_tokens(wanted, ours, places)


def _of_tokens(wanted: F64, ours: F64, places: I64) -> float | None:
    loud = (np.abs(ours) > 0.01 * np.abs(ours).max()) & (wanted * ours > 0) & (places > 0)
    if not loud.any():
        return None
    return float(np.exp(np.median(np.log(wanted[loud] / ours[loud]) / places[loud])))


def _of_row(wanted: F64, ours: F64, places: I64, responses: Segments, row: int) -> float | None:
    """Of a ratio of whole responses: the mean of γ^k over its tokens is known."""
    mine = slice(responses.starts[row], responses.starts[row] + responses.lengths[row])
    share = float(wanted[mine] @ ours[mine]) / float(ours[mine] @ ours[mine])
    low, high = 1e-3, 1.1
    if not float(np.mean(low ** places[mine])) < share < float(np.mean(high ** places[mine])):
        return None
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float(np.mean(middle ** places[mine])) < share:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
