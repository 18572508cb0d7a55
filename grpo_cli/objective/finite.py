"""Says where a result is not finite: the record, the response and the token."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown

_FAR_FROM_OVERFLOW = 1e300


def check_finite(breakdown: Breakdown) -> None:
    """Raises where a term that has a part in J, or its gradient, is not finite.

    Raises:
        InputError: with the record, and the response and token where one is to blame.
    """
    responses = breakdown.batch.responses
    sums = [term.sums for term in breakdown.active]
    sums += [responses.sum(part.slope) for part in breakdown.gradient_parts]
    if all(np.isfinite(values).all() for values in sums):
        _check_sums(breakdown)
        return
    finite = np.isfinite(breakdown.surrogate)
    for part in breakdown.gradient_parts:
        finite &= np.isfinite(part.slope)
    for term in breakdown.active[1:]:
        finite &= np.isfinite(term.values)
    if finite.all():
        _raise_sum(breakdown, [np.isfinite(values) for values in sums])
    _raise_at(breakdown, int(np.argmin(finite)))


def _check_sums(breakdown: Breakdown) -> None:
    # What no record's objective exceeds: denominators that count are at least 1.
    bound = sum(
        abs(term.coefficient) * float(np.abs(term.weighted).sum()) for term in breakdown.active
    )
    if bound < _FAR_FROM_OVERFLOW:  # seldom is there a need to look at each record
        return
    finite = np.isfinite(breakdown.record_objective)
    if not finite.all():
        message = "the sum over the record's responses overflows"
        raise InputError(message, record=int(np.argmin(finite)))


def _raise_sum(breakdown: Breakdown, finite: list[NDArray[np.bool_]]) -> NoReturn:
    response = int(np.argmin(np.logical_and.reduce(finite)))
    record = int(breakdown.batch.records.index[response])
    local = response - int(breakdown.batch.records.starts[record])
    message = "the sum over the response's tokens overflows"
    raise InputError(message, path=f"response {local}", record=record)


def _raise_at(breakdown: Breakdown, token: int) -> NoReturn:
    batch = breakdown.batch
    response = int(batch.responses.index[token])
    record = int(batch.records.index[response])
    position = token - int(batch.responses.starts[response])
    if batch.positions is not None:
        position = int(batch.positions[token])
    local = response - int(batch.records.starts[record])
    kl = breakdown.kl
    raise InputError(
        f"the objective is not finite: log ratio {breakdown.log_ratio[token]:g}, "
        f"surrogate {breakdown.surrogate[token]:g}" + ("" if kl is None else f", kl {kl[token]:g}"),
        path=f"response {local}, token {position}",
        record=record,
    )
