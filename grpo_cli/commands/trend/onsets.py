"""When a series left its past behind: a level that shifts, or a drift that begins.

Before a candidate the past is a level, or a Theil–Sen line where Mann–Kendall finds a trend in it.
What follows is compared with that past as it would have gone on: by its mean (a shift) and by its
slope (a drift), each divided by a standard error that counts the noise of both sides, the
uncertainty of the past, and the correlation of neighbours (``departures``). Single outliers are
taken in first.

References:
    Theil, 1950; Sen, 1968: the median of the slopes of all pairs.
    Mann, 1945; Kendall, 1975: the sign test of a trend.
    Hampel, 1974: the median and MAD of neighbours, by which outliers are told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from grpo_cli.batch import F64
from grpo_cli.commands.trend.departures import (
    FUTURE,
    LEAST_FUTURE,
    LEAST_PAST,
    PAST,
    Change,
    Rows,
    largest,
    medians,
)

LEAST = 16
"""Steps that a series must have."""
_FEW_VALUES = 12  # so many different values, or fewer, are shares of a few groups


class Onset(NamedTuple):
    """Where a series changed.

    Attributes:
        at: the index of the first value that is different.
        kind: "shift" or "drift".
        score: by how many standard errors.
        up: whether it went up.
        before: what was usual: the median of the past.
        after: the median of what followed; of a drift, of its end.
    """

    at: int
    kind: str
    score: float
    up: bool
    before: float
    after: float


class Series(NamedTuple):
    """What an onset is looked for in.

    Attributes:
        values: [n] finite, one a step.
        drift_up, drift_down: in which directions a drift is a change; a shift is in both.
    """

    values: F64
    drift_up: bool
    drift_down: bool


def onset(values: F64, *, drift_up: bool = False, drift_down: bool = False) -> Onset | None:
    """The first change of a series, or None; ``Series`` says what it is told of it."""
    (found,) = onsets([Series(values, drift_up, drift_down)])
    return found


def onsets(series: Sequence[Series]) -> list[Onset | None]:
    """The first change of each series, or None. Those of one length are looked at together."""
    clean = {at: _clean(one.values) for at, one in enumerate(series) if _moves(one.values)}
    ends = {at: len(values) for at, values in clean.items()}
    found: dict[int, Change] = {}
    while ends:
        end = max(ends.values())
        alike = [at for at, other in ends.items() if other == end]
        rows = _rows([series[at] for at in alike], [clean[at] for at in alike], end)
        for at, change in zip(alike, largest(rows), strict=True):
            del ends[at]
            if change is None:
                continue
            found[at] = change
            if change.at >= LEAST:  # what was before the largest change may have changed as well
                ends[at] = change.at
    return [
        _described(found[at], one.values) if at in found else None for at, one in enumerate(series)
    ]


def _moves(values: F64) -> bool:
    return len(values) >= LEAST and bool(np.ptp(values) != 0.0)


def _rows(series: Sequence[Series], clean: Sequence[F64], end: int) -> Rows:
    """The series up to an end, side by side."""
    return Rows(
        np.array([values[:end] for values in clean]),
        np.array([(one.drift_up, one.drift_down) for one in series]),
        np.array([_grain(one.values) / 2 for one in series]),
    )


def vanished(values: F64) -> Onset | None:
    """Where numbers that were never 0 became exactly 0 and stayed so: no noise does that."""
    zero = values == 0.0
    for at in np.flatnonzero(zero).tolist():
        begun = LEAST_PAST <= at <= len(values) - LEAST_FUTURE
        if begun and zero[at : at + LEAST_FUTURE].all() and not zero[at - LEAST_PAST : at].any():
            before = float(np.median(values[max(0, at - PAST) : at]))
            return Onset(at, "shift", math.inf, up=False, before=before, after=0.0)
    return None


def _grain(values: F64) -> float:
    """The least difference of values of which there are few, as shares of a few groups are."""
    kinds = np.unique(values)
    return float(np.diff(kinds).min()) if len(kinds) <= _FEW_VALUES else 0.0


def _clean(values: F64) -> F64:
    """Values farther than 5 MADs from the median of their seven neighbours, taken back to it."""
    padded = np.pad(values, 3, mode="reflect")
    windows = sliding_window_view(padded, 7)
    middle = medians(windows)
    spread = 1.4826 * medians(np.abs(windows - middle[:, None]))
    spread = np.maximum(spread, float(np.median(spread)))
    return np.where(np.abs(values - middle) > 5 * spread, middle, values)


def _described(change: Change, values: F64) -> Onset:
    past = values[max(0, change.at - PAST) : change.at]
    future = values[change.at : change.at + FUTURE]
    after = future if change.kind == "shift" else future[-LEAST_FUTURE:]
    return Onset(
        change.at,
        change.kind,
        abs(change.score),
        change.score > 0,
        float(np.median(past)),
        float(np.median(after)),
    )
