"""When a series left its past behind: a level that shifts, or a drift that begins.

Before a candidate the past is a level, or a Theil–Sen line where Mann–Kendall finds a trend in it.
What follows is compared with that past as it would have gone on: by its mean (a shift) and by its
slope (a drift), each divided by a standard error that counts the noise of both sides, the
uncertainty of the past, and the correlation of neighbours. Single outliers are taken in first.
Many series and places are compared at once, as rows.

References:
    Theil, 1950; Sen, 1968: the median of the slopes of all pairs.
    Mann, 1945; Kendall, 1975: the sign test of a trend.
    Hampel, 1974: the median and MAD of neighbours, which identify outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64

LEAST = 16
"""Steps that a series must have."""
PAST, FUTURE = 30, 12  # steps compared, at most
LEAST_PAST, LEAST_FUTURE = 10, 4
_FEW_VALUES = 12  # so many different values, or fewer, are shares of a few groups
_TREND = (1.3, 2.0)  # Mann–Kendall's z from which a past of less, or more, than 20 steps slopes
_LONG = 400  # steps from which on more is asked, as there are more places for a chance
_AT_ONCE = 256  # places whose pasts and futures are in memory at once
_ROWS = 256  # pasts whose pairs are in memory at once: 1 MB
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
    """The first change of a series, or None; the arguments are those of ``Series``."""
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
    """The least difference of values if these are shares of a few groups, else 0."""
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


# ---- by how much series differ from their past ------------------------------------------------


class Change(NamedTuple):
    """Where a series leaves its past, how ("shift" or "drift"), and by how many errors."""

    at: int
    kind: str
    score: float


class Rows(NamedTuple):
    """Series of one length: [k, n] values, [k, 2] whether a drift up or down counts, [k] grain."""

    values: F64
    kinds: NDArray[np.bool_]
    least: F64


def largest(rows: Rows) -> list[Change | None]:
    """The largest change of each series; None where nothing is more than chance."""
    bests: list[Change | None] = [None] * len(rows.values)
    count = rows.values.shape[1]
    last, strict = count - LEAST_FUTURE, 1 + math.log(max(count / _LONG, 1.0)) / 15
    for first in range(LEAST_PAST, last + 1, _AT_ONCE):
        begin = max(first - PAST, 0)
        stretch = rows.values[:, begin : first + _AT_ONCE + FUTURE]
        places = np.arange(first, min(first + _AT_ONCE, last + 1)) - begin
        for at, change in enumerate(_best(rows._replace(values=stretch), places, strict)):
            known = bests[at]
            if change is not None and (known is None or abs(change.score) > abs(known.score)):
                bests[at] = change._replace(at=change.at + begin)
    return bests


def _best(rows: Rows, places: I64, strict: float) -> list[Change | None]:
    """The largest change of each series at any of these places, shifts before drifts.

    ``strict`` times what is asked of a short series is asked of one with many places.
    """
    scores = np.zeros((len(rows.values), len(places), 2))
    trends = mann_kendall(rows.values, places)
    pasts, futures = _sizes(rows.values, places)
    for past, future in dict.fromkeys(zip(pasts.tolist(), futures.tolist(), strict=True)):
        chosen = np.flatnonzero((pasts == past) & (futures == future))
        before = sliding_window_view(rows.values, past, axis=1)[:, places[chosen] - past]
        after = sliding_window_view(rows.values, future, axis=1)[:, places[chosen]]
        slopes = np.abs(trends[:, chosen]) > _TREND[past >= 20]
        scores[:, chosen] = _changes(before, after, slopes, rows, strict)
    largest = np.abs(scores).reshape(len(scores), -1).argmax(axis=1)
    found = zip(largest.tolist(), scores, strict=True)
    return [_change(int(places[at // 2]), at % 2, score[at // 2, at % 2]) for at, score in found]


def _sizes(values: F64, places: I64) -> tuple[I64, I64]:
    """[m] how many values before a place, and from it on, are compared."""
    return np.minimum(places, PAST), np.minimum(values.shape[1] - places, FUTURE)


def _change(at: int, kind: int, score: float) -> Change | None:
    return Change(at, ("shift", "drift")[kind], float(score)) if score else None


def _changes(past: F64, future: F64, slopes: NDArray[np.bool_], rows: Rows, strict: float) -> F64:
    """[k, m, 2] scores of a shift and a drift where they are more than chance, else 0.

    Args:
        past, future: [k, m, p] and [k, m, f], for each series and place.
        slopes: [k, m] whether the past has a trend.
        rows: the series.
        strict: how much more is asked.
    """
    level, slope, rests = _lines(past, slopes)
    ahead = np.arange(1, future.shape[2] + 1.0)
    rest = future - (level[..., None] + slope[..., None] * ahead)
    step, ramp = rest.mean(axis=2), _dot(rest, ahead) / float(ahead @ ahead)
    least = np.broadcast_to(rows.least[:, None], step.shape)
    trend, sizes = slope != 0.0, (past.shape[2], future.shape[2])
    shift = step / (
        _error(_mean_error, sizes, trend) * _noise(rests, rest - step[..., None], least)
    )
    away = rest - ramp[..., None] * ahead
    drift = ramp / (_error(_ramp_error, sizes, trend) * _noise(rests, away, least))
    factor = (1 + 4 / past.shape[2]) * strict
    wanted = np.where(drift > 0, rows.kinds[:, :1], rows.kinds[:, 1:])
    wanted &= (np.abs(drift) > _DRIFT * factor) & (future.shape[2] > 2 * LEAST_FUTURE)
    shifted = np.abs(shift) > _SHIFT * factor
    return np.stack((np.where(shifted, shift, 0.0), np.where(wanted, drift, 0.0)), axis=2)


def _lines(past: F64, slopes: NDArray[np.bool_]) -> tuple[F64, F64, F64]:
    """The pasts' levels at their ends, slopes (0 without a trend), and what is left of them."""
    slope = np.zeros(past.shape[:2])
    slope[slopes] = theil_sen(past[slopes])
    places = np.arange(past.shape[2]) - (past.shape[2] - 1.0)
    line = slope[..., None] * places
    level = medians(past - line)
    return level, slope, past - level[..., None] - line


def medians(rows: F64) -> F64:
    """Those of the last axis, of finite numbers: short rows are sooner sorted than parted."""
    rows, half = np.sort(rows, axis=-1), rows.shape[-1] // 2
    if rows.shape[-1] % 2:
        return rows[..., half]
    middle: F64 = (rows[..., half - 1] + rows[..., half]) / 2
    return middle


def _dot(left: F64, right: F64) -> F64:
    """[k, m] the products of rows [k, m, n]."""
    product: F64 = (left[..., None, :] @ right[..., :, None])[..., 0, 0]
    return product


def _error(
    error: Callable[..., float], sizes: tuple[int, int], trend: NDArray[np.bool_]
) -> NDArray[np.float64]:
    return np.where(trend, error(*sizes, trend=True), error(*sizes, trend=False))


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


def _noise(past: F64, future: F64, least: F64) -> F64:
    """The standard deviations of what is left, as if neighbours were not correlated.

    Noise and correlation are taken from both sides; it is ``least`` at least.
    """
    count = past.shape[2] + future.shape[2]
    square = (_dot(past, past) + _dot(future, future)) / (count - 3)
    pairs = _dot(past[..., 1:], past[..., :-1]) + _dot(future[..., 1:], future[..., :-1])
    small = square <= least * least
    correlation = pairs / (np.where(small, 1.0, square) * (count - 3))
    correlation = np.clip(correlation + (1 + 4 * correlation) / count, 0.0, 0.95)
    noise = np.sqrt(square * (1 + correlation) / (1 - correlation))
    return np.where(small, np.where(least, least, 1e-300), noise)


def mann_kendall(values: F64, places: I64) -> F64:
    """[k, m] the standardised S of Mann and Kendall of the past at each place: 0 without a trend.

    Ties are not corrected for. The signs of neighbours at each distance are added up along the
    series [k, n], so that a past's are a difference.
    """
    counts, _ = _sizes(values, places)
    score = np.zeros((len(values), len(places)))
    for distance in range(1, int(counts.max())):
        signs = np.sign(values[:, distance:] - values[:, :-distance])
        sums = np.zeros((len(values), signs.shape[1] + 1))
        np.cumsum(signs, axis=1, out=sums[:, 1:])
        inside = counts > distance
        ends = places[inside]
        score[:, inside] += sums[:, ends - distance] - sums[:, ends - counts[inside]]
    spread = np.sqrt(counts * (counts - 1) * (2 * counts + 5) / 18)
    return np.where(score, (score - np.copysign(1.0, score)) / spread, 0.0)


def theil_sen(rows: F64) -> F64:
    """[m] the median of the slopes of all pairs of each row [m, n]."""
    first, second = np.triu_indices(rows.shape[1], 1)
    parts = [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]
    slopes = [medians((a[:, second] - a[:, first]) / (second - first)) for a in parts]
    return np.concatenate(slopes) if slopes else np.zeros(0)
