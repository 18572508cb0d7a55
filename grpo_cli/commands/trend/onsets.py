"""When a series left its past behind: a level that shifts, or a drift that begins.

Before a candidate the past is a level, or a Theil–Sen line where Mann–Kendall finds a trend in it.
What follows is compared with that past as it would have gone on: by its mean (a shift) and by its
slope (a drift), each divided by a standard error that counts the noise of both sides, the
uncertainty of the past, and the correlation of neighbours. Single outliers are taken in first.
A CUSUM of the standardised residuals tells how far the onset goes back.

References:
    Theil, 1950; Sen, 1968: the median of the slopes of all pairs.
    Mann, 1945; Kendall, 1975: the sign test of a trend.
    Page, Continuous inspection schemes, 1954: the cumulative sum.
    Hampel, 1974: the median and MAD of neighbours, by which outliers are told.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64

LEAST = 16
"""Steps that a series must have."""
_PAST, _FUTURE = 30, 12  # steps compared, at most
_LEAST_PAST, _LEAST_FUTURE = 10, 4
_TREND = (1.3, 2.0)  # Mann–Kendall's z from which a past of less, or more, than 20 steps slopes
_FEW_VALUES = 12  # so many different values, or fewer, are shares of a few groups
_COARSE = 200  # candidates looked at first in a long series
_SHIFT, _DRIFT = 8.0, 9.5  # standard errors, times 1 + 4/past: few values know their noise badly


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


def onset(values: F64, *, drift_up: bool = False, drift_down: bool = False) -> Onset | None:
    """The first change of a series, or None.

    Args:
        values: [n] finite, one a step.
        drift_up, drift_down: in which directions a drift is a change; a shift is in both.
    """
    if len(values) < LEAST or np.ptp(values) == 0.0:
        return None
    kinds = (drift_up, drift_down)
    clean, least = _without_outliers(values), _grain(values) / 2
    found, end = None, len(clean)
    while end >= LEAST:  # what was before the largest change may have changed as well
        best = _largest(clean[:end], kinds, least)
        if best is None:
            break
        found, end = best, best.at
    return None if found is None else _described(found, values)


def vanished(values: F64) -> Onset | None:
    """Where numbers that were never 0 became exactly 0 and stayed so: no noise does that."""
    zero = values == 0.0
    for at in range(_LEAST_PAST, len(values) - _LEAST_FUTURE + 1):
        if zero[at : at + _LEAST_FUTURE].all() and not zero[at - _LEAST_PAST : at].any():
            before = float(np.median(values[max(0, at - _PAST) : at]))
            return Onset(at, "shift", math.inf, up=False, before=before, after=0.0)
    return None


class _Change(NamedTuple):
    at: int
    kind: str
    score: float


def _grain(values: F64) -> float:
    """The least difference of values of which there are few, as shares of a few groups are."""
    kinds = np.unique(values)
    return float(np.diff(kinds).min()) if len(kinds) <= _FEW_VALUES else 0.0


def _largest(values: F64, kinds: tuple[bool, bool], least: float) -> _Change | None:
    count = len(values)
    stride = max(1, count // _COARSE)
    last = count - _LEAST_FUTURE
    best = _best(values, range(_LEAST_PAST, last + 1, stride), kinds, least)
    if best is not None and stride > 1:
        near = range(max(_LEAST_PAST, best.at - stride), min(last, best.at + stride) + 1)
        best = _best(values, near, kinds, least)
    return best


def _best(values: F64, places: range, kinds: tuple[bool, bool], least: float) -> _Change | None:
    changes = [change for at in places for change in _changes(values, at, kinds, least)]
    return max(changes, key=lambda change: abs(change.score), default=None)


def _changes(values: F64, at: int, kinds: tuple[bool, bool], least: float) -> list[_Change]:
    """What changed at a place by more than chance, the noise being ``least`` at least."""
    past, future = values[max(0, at - _PAST) : at], values[at : at + _FUTURE]
    level, slope, own = _line(past)
    rest = future - (level + slope * np.arange(1, len(future) + 1))
    step, ramp = rest.mean(), _ramp(rest)
    noise_step, noise_ramp = rest - step, rest - ramp * np.arange(1, len(rest) + 1)
    sizes, trend = (len(past), len(future)), slope != 0.0
    shift = step / (_mean_error(*sizes, trend=trend) * _noise(own, noise_step, least))
    drift = ramp / (_ramp_error(*sizes, trend=trend) * _noise(own, noise_ramp, least))
    few = 1 + 4 / len(past)
    found = [_Change(at, "shift", shift)] if abs(shift) > _SHIFT * few else []
    wanted = kinds[0] if drift > 0 else kinds[1]
    if wanted and abs(drift) > _DRIFT * few and len(future) > 2 * _LEAST_FUTURE:
        found.append(_Change(at, "drift", drift))
    return found


def _line(past: F64) -> tuple[float, float, F64]:
    """The past's level at its end, its slope (0 unless it has a trend), and what is left."""
    places = np.arange(len(past)) - (len(past) - 1.0)
    if abs(mann_kendall(past)) <= _TREND[len(past) >= 20]:
        level = float(np.median(past))
        return level, 0.0, past - level
    slope = theil_sen(past)
    level = float(np.median(past - slope * places))
    return level, slope, past - level - slope * places


def _ramp(rest: F64) -> float:
    """The slope of a line through the last value of the past."""
    places = np.arange(1, len(rest) + 1)
    return float(places @ rest / (places @ places))


def _mean_error(past: int, future: int, *, trend: bool) -> float:
    """The standard error of the shift, in standard deviations of the noise."""
    ahead = (past / 2 + future / 2) ** 2 * 12 / past**3 if trend else 0.0
    return math.sqrt(1 / past + 1 / future + ahead)


def _ramp_error(past: int, future: int, *, trend: bool) -> float:
    squares = future * (future + 1) * (2 * future + 1) / 6
    whole = future * (future + 1) / 2
    ahead = 12 / past**3 if trend else 0.0
    level = (4 if trend else 1) / past
    return math.sqrt(1 / squares + (whole / squares) ** 2 * level + ahead)


def _noise(past: F64, future: F64, least: float) -> float:
    """The standard deviation of what is left, as if neighbours were not correlated.

    Noise and correlation are taken from both sides.
    """
    count = len(past) + len(future)
    square = float(past @ past + future @ future) / (count - 3)
    if square <= least * least:
        return least or 1e-300
    pairs = past[1:] @ past[:-1] + future[1:] @ future[:-1]
    correlation = float(pairs / (square * (count - 3)))
    correlation = min(max(correlation + (1 + 4 * correlation) / count, 0.0), 0.95)
    return math.sqrt(square * (1 + correlation) / (1 - correlation))


def mann_kendall(values: F64) -> float:
    """The standardised S of Mann and Kendall: 0 without a trend; ties are not corrected for."""
    count = len(values)
    signs = np.sign(values[None, :] - values[:, None])
    score = float(np.triu(signs, 1).sum())
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return (score - math.copysign(1.0, score)) / spread if score else 0.0


def theil_sen(values: F64) -> float:
    """The median of the slopes of all pairs."""
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / (second - first)))


def _without_outliers(values: F64) -> F64:
    """Values farther than 5 MADs from the median of their seven neighbours, taken back to it."""
    padded = np.pad(values, 3, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 7)
    middle = np.median(windows, axis=1)
    spread = 1.4826 * np.median(np.abs(windows - middle[:, None]), axis=1)
    spread = np.maximum(spread, float(np.median(spread)))
    return np.where(np.abs(values - middle) > 5 * spread, middle, values)


def _described(change: _Change, values: F64) -> Onset:
    past = values[max(0, change.at - _PAST) : change.at]
    future = values[change.at : change.at + _FUTURE]
    after = future if change.kind == "shift" else future[-_LEAST_FUTURE:]
    return Onset(
        change.at,
        change.kind,
        abs(change.score),
        change.score > 0,
        float(np.median(past)),
        float(np.median(after)),
    )
