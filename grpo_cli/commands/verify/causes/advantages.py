"""Advantages that were changed on the way to the loss: turned, moved, clipped, exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.breakdown import Breakdown

Change = Callable[[F64, F64], F64]
"""[R] advantages and [R] lengths → [R] advantages."""


def _first(a: F64) -> F64:
    return np.full_like(a, a[0]) if a.size else a


def _std(a: F64, ddof: int) -> float:
    return float(a.std(ddof=ddof)) if a.size > ddof else math.nan


def _whitened(a: F64, ddof: int) -> F64:
    return (a - a.mean()) / (_std(a, ddof) + 1e-8)


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
        lambda a, _: a / (_std(a, 1) + 1e-8),
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
    if per_response(case) is not None and case.other_advantages:
        for words, change in CHANGES:
            yield Cause("advantage", words, partial(judged, change=change))


def per_response(case: Case) -> F64 | None:
    """[R] our advantages; None where they differ within a response."""
    return case.breakdown.response_advantage


def judged(case: Case, change: Change) -> Breakdown:
    """The record with its advantages changed."""
    a = per_response(case)
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
