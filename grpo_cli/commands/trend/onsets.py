"""When a series left its past behind: a level that shifts, or a drift that begins.

Before a candidate the past is a level, or a Theil–Sen line where Mann–Kendall finds a trend in it.
What follows is compared with that past as it would have gone on: by its mean (a shift) and by its
slope (a drift), each divided by a standard error that counts the noise of both sides, the
uncertainty of the past, and the correlation of neighbours. What follows may be no level and no
line: its noise is that of neighbouring values. Single outliers of the past are taken in first.
Many series and places are compared at once, as rows.

A candidate is compared with 4 steps that follow it, with 5, … up to 12, as a run that grows has
them. Nothing later counts, so that what is found stays found.

References:
    Theil, 1950; Sen, 1968: the median of the slopes of all pairs.
    Mann, 1945; Kendall, 1975: the sign test of a trend.
    Hampel, 1974: the median and MAD of neighbours, which identify outliers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64

LEAST = 16
"""Steps that a series must have."""
PAST, FARTHEST = 30, 20  # steps compared, at most; FUTURE of those that follow are shown
FUTURE, LEAST_PAST, LEAST_FUTURE = 12, 10, 4
_SIZES = np.array([4, 5, 6, 7, 8, 10, 12, 16, 20])
_KINDS = ("shift", "drift")
_FIRSTS = np.triu(np.ones((FARTHEST, FARTHEST)))[:, _SIZES - 1]
"""Adds up the first values of a future, for each of the sizes."""
_TREND = (1.3, 2.0)  # Mann–Kendall's z from which a past of less, or more, than 20 steps slopes
_LONG = 400  # steps from which on more is asked, as there are more places for a chance
_FAR = 0.7  # the least share of a bound for what more than FUTURE steps show
_AT_ONCE = 256  # places whose pasts and futures are in memory at once
_ROWS = 256  # pasts whose pairs are in memory at once: 1 MB
_SHIFT, _DRIFT = 7.8, 9.2  # standard errors, times 1 + 7/past: few values know their noise badly


class Onset(NamedTuple):
    """Where a series changed.

    Attributes:
        at: the index of the first value that is different.
        seen: how many values of the series show it.
        kind: "shift" or "drift".
        score: by how many standard errors, above 0 where it went up.
    """

    at: int
    seen: int
    kind: str
    score: float


def onsets(rows: F64, least: F64, shares: F64) -> list[list[Onset]]:
    """The changes of each series, in the order in which they are seen.

    Args:
        rows: [k, n] the series.
        least: [k, n] what the noise up to each value is at least.
        shares: [k, 2] the shares of the bounds that a rise, and a fall, has to pass.
    """
    found: list[list[Onset]] = [[] for _ in rows]
    if rows.shape[1] < LEAST:
        return found
    clean = _cleaned(rows)
    last = rows.shape[1] - LEAST_FUTURE
    for first in range(LEAST_PAST, last + 1, _AT_ONCE):
        stretch = slice(max(first - PAST, 0), first + _AT_ONCE + FARTHEST)
        places = np.arange(first, min(first + _AT_ONCE, last + 1))
        part = rows[:, stretch]
        moved = np.flatnonzero((part != part[:, :1]).any(axis=1))
        part, usual, floor = (one[moved, stretch] for one in (rows, clean, least))
        for row, onset in _between(part, usual, floor, places, stretch.start, shares[moved]):
            found[moved[row]].append(onset)
    return [sorted(each, key=lambda one: (one.seen, -abs(one.score))) for each in found]


def _between(
    rows: F64, clean: F64, least: F64, places: I64, start: int, shares: F64
) -> Iterator[tuple[int, Onset]]:
    """The row of each change at any of these places, and the change as it is first seen.

    Args:
        rows, clean, least: [k, n] a stretch of the series, without outliers, and its least noise.
        places: in the series.
        start: that of the stretch.
        shares: of the bounds, as ``onsets`` has them.
    """
    trends, pasts = mann_kendall(clean, places - start), np.minimum(places, PAST)
    ahead, grains = (np.pad(one, ((0, 0), (0, FARTHEST))) for one in (rows, least))
    for past in dict.fromkeys(pasts.tolist()):
        chosen = places[pasts == past]
        inside, end = int(chosen[0]) - start, int(chosen[-1]) + 1 - start
        before = sliding_window_view(clean, past, axis=1)[:, inside - past : end - past]
        after = sliding_window_view(ahead, FARTHEST, axis=1)[:, inside:end]
        slopes = np.abs(trends[:, pasts == past]) > _TREND[past >= 20]
        seen = chosen[:, None] + _SIZES
        scores = _scores(before, after, slopes, grains[:, seen - start - 1])
        strict = 1 + np.log(np.maximum(seen / _LONG, 1.0)) / 15
        bounds = (1 + 7 / past) * strict[..., None] * (_SHIFT, _DRIFT)
        bounds[seen - start > rows.shape[1]] = np.inf  # there is no such future yet
        own = np.where(scores > 0.0, shares[:, None, None, None, 0], shares[:, None, None, None, 1])
        own = np.maximum(own, np.where(_SIZES > FUTURE, _FAR, 0.0)[:, None])
        passed = np.abs(scores) > own * bounds
        for row, at in zip(*np.nonzero(passed.any(axis=(2, 3))), strict=True):
            size, kind = divmod(int(passed[row, at].argmax()), 2)
            score, end = float(scores[row, at, size, kind]), int(seen[at, size])
            yield int(row), Onset(int(chosen[at]), end, _KINDS[kind], score)


def _cleaned(rows: F64) -> F64:
    """Values farther than 5 MADs from the median of their seven neighbours, taken back to it."""
    windows = sliding_window_view(np.pad(rows, ((0, 0), (3, 3)), mode="reflect"), 7, axis=1)
    middle, spread = levels(windows)
    sums = np.cumsum(np.pad(spread, ((0, 0), (1, 0))), axis=1)
    ends = np.arange(1, rows.shape[1] + 1)
    starts = np.maximum(ends - PAST, 0)
    usual = (sums[:, ends] - sums[:, starts]) / (ends - starts)
    return np.where(np.abs(rows - middle) > 5 * np.maximum(spread, usual), middle, rows)


# ---- by how much series differ from their past ------------------------------------------------


def _scores(past: F64, future: F64, slopes: NDArray[np.bool_], least: F64) -> F64:
    """[k, m, sizes, 2] by how many standard errors a shift and a drift are off.

    Args:
        past, future: [k, m, p] and [k, m, FARTHEST], for each series and place.
        slopes: [k, m] whether the past has a trend.
        least: [k, m, sizes] what the noise is at least.
    """
    level, slope, rests = _lines(past, slopes)
    ahead, count, trend = np.arange(1, FARTHEST + 1.0), past.shape[2], (slope != 0.0)[..., None]
    rest = future - (level[..., None] + slope[..., None] * ahead)
    square, product = _dot(rests, rests)[..., None], _dot(rests[..., 1:], rests[..., :-1])
    turns = np.diff(future, axis=2) ** 2 @ _FIRSTS[1:]
    turns -= (future[..., _SIZES - 1] - future[..., :1]) ** 2 / (_SIZES - 1)
    variance, inflation = _noise(square, product[..., None], turns, count)
    left = (square == 0.0) & (np.abs(rest[..., : _SIZES[1]]).min(axis=2, keepdims=True) > 0.0)
    least = np.where(left & (_SIZES[1] <= _SIZES), 0.0, least)
    error = np.sqrt(np.maximum(variance, np.maximum(least * least, 1e-300)) * inflation)
    whole = _SIZES * (_SIZES + 1) / 2
    powers = whole * (2 * _SIZES + 1) / 3
    lever = np.where(trend, 12 / count**3, 0.0)
    level_error = np.where(trend, 4, 1) / count
    shift = (rest @ _FIRSTS) / _SIZES / error
    shift /= np.sqrt(1 / count + 1 / _SIZES + lever * (count + _SIZES) ** 2 / 4)
    drift = ((rest * ahead) @ _FIRSTS) / powers / error
    drift /= np.sqrt(1 / powers + (whole / powers) ** 2 * level_error + lever)
    drift[..., _SIZES <= 2 * LEAST_FUTURE] = 0.0
    return np.stack((shift, drift), axis=3)


def _noise(square: F64, product: F64, turns: F64, count: int) -> tuple[F64, F64]:
    """[k, m, sizes] the variance of both sides, and what correlated neighbours add to it.

    What follows a change may be a level, a slope or a curve, so its noise is that of neighbours
    around their mean step. It is no less than the noise before: few values are equal by chance.

    Args:
        square, product: of what is left of the past, and of its neighbours.
        turns: the squared differences of neighbours that follow, around their mean.
        count: the values of the past.
    """
    correlation = product / np.where(square > 0.0, square, 1.0)
    correlation = np.clip(correlation + (1 + 4 * correlation) / count, 0.0, 0.95)
    both = (square + turns / 2 / (1 - correlation)) / (count + _SIZES - 5)
    return np.maximum(both, square / (count - 3)), (1 + correlation) / (1 - correlation)


def _lines(past: F64, slopes: NDArray[np.bool_]) -> tuple[F64, F64, F64]:
    """The pasts' levels at their ends, slopes (0 without a trend), and what is left of them."""
    slope = np.zeros(past.shape[:2])
    slope[slopes] = theil_sen(past[slopes])
    places = np.arange(past.shape[2]) - (past.shape[2] - 1.0)
    line = slope[..., None] * places
    level = medians(past - line)
    return level, slope, past - level[..., None] - line


def end_of_trend(values: F64, at: int) -> tuple[float, float]:
    """The level at which the values before a place end, and their robust deviation from it.

    They are on a line where Mann–Kendall finds a trend in them.
    """
    past = values[None, max(at - PAST, 0) : at]
    count = past.shape[1]
    slopes = np.abs(mann_kendall(past, np.array([count]))) > _TREND[count >= 20]
    level, _, rests = _lines(past[:, None], slopes)
    return float(level[0, 0]), float(levels(rests[0])[1][0])


def medians(rows: F64) -> F64:
    """Those of the last axis, of finite numbers: short rows are sooner sorted than parted."""
    rows, half = np.sort(rows, axis=-1), rows.shape[-1] // 2
    if rows.shape[-1] % 2:
        return rows[..., half]
    middle: F64 = (rows[..., half - 1] + rows[..., half]) / 2
    return middle


def levels(rows: F64) -> tuple[F64, F64]:
    """The medians of the last axis, and the robust standard deviations from them (1.4826 MADs)."""
    middle = medians(rows)
    return middle, 1.4826 * medians(np.abs(rows - middle[..., None]))


def _dot(left: F64, right: F64) -> F64:
    """[k, m] the products of rows [k, m, n]."""
    product: F64 = (left[..., None, :] @ right[..., :, None])[..., 0, 0]
    return product


def mann_kendall(values: F64, places: I64) -> F64:
    """[k, m] the standardised S of Mann and Kendall of the past at each place: 0 without a trend.

    Ties are not corrected for. The signs of neighbours at each distance are added up along the
    series [k, n], so that a past's are a difference. The places follow each other.
    """
    counts = np.minimum(places, PAST)
    score = np.zeros((len(values), len(places)), dtype=np.int32)
    first, end = int(places[0]), int(places[-1]) + 1
    full = max(PAST, first)  # the first place that has a whole past
    for distance in range(1, int(counts.max())):
        later, earlier = values[:, distance:], values[:, :-distance]
        signs = (later > earlier).view(np.int8) - (later < earlier).view(np.int8)
        sums = np.zeros((len(values), signs.shape[1] + 1), dtype=np.int32)
        np.cumsum(signs, axis=1, out=sums[:, 1:])
        begin = max(first, distance + 1)
        score[:, begin - first :] += sums[:, begin - distance : end - distance]
        score[:, full - first :] -= sums[:, full - PAST : max(end, full) - PAST]
    spread = np.sqrt(counts * (counts - 1) * (2 * counts + 5) / 18)
    return np.where(score, (score - np.copysign(1.0, score)) / spread, 0.0)


def theil_sen(rows: F64) -> F64:
    """[m] the median of the slopes of all pairs of each row [m, n]."""
    first, second = np.triu_indices(rows.shape[1], 1)
    parts = [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]
    slopes = [medians((a[:, second] - a[:, first]) / (second - first)) for a in parts]
    return np.concatenate(slopes) if slopes else np.zeros(0)
