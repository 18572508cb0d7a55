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

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.watched import UP, Limit, Steady

KINDS = "shift", "drift", "spike", "limit", "impossible", "stuck", "trend"
"""Of findings."""
SHIFT, DRIFT, SPIKE, LIMIT, IMPOSSIBLE, STUCK, TREND = KINDS

LEAST = 16
"""Steps that a series must have."""
PAST, FARTHEST = 30, 20  # steps compared, at most; FUTURE of those that follow are shown
FUTURE, LEAST_PAST, LEAST_FUTURE = 12, 10, 4
_SIZES = np.array([4, 5, 6, 7, 8, 10, 12, 16, 20])
_FIRSTS = np.triu(np.ones((FARTHEST, FARTHEST)))[:, _SIZES - 1]
"""Adds up the first values of a future, for each of the sizes."""
_DRIFTS = 2 * LEAST_FUTURE < _SIZES
"""The sizes at which a drift is looked for."""
_AHEAD = np.arange(1, FARTHEST + 1.0)
_WHOLE = _SIZES * (_SIZES + 1) / 2
_POWERS = _WHOLE * (2 * _SIZES + 1) / 3
"""Sums of the steps of a future, and of their squares."""
_TREND = (1.3, 2.0)  # Mann–Kendall's z from which a past of less, or more, than 20 steps slopes
_ROUNDING = 1e-9  # of what is compared to find places that may differ
_AT_ONCE = 256  # places whose pasts and futures are in memory at once
_ROWS = 256  # pasts whose pairs are in memory at once: 1 MB
_SHIFT, _DRIFT = 7.8, 9.2  # standard errors, times 1 + 7/past: a short past has rough noise


class Change(NamedTuple):
    """Where a series went wrong.

    Attributes:
        at: the index of the first value that is different.
        seen: how many values of the series show it.
        kind: of ``KINDS``.
        up: whether it went up.
        score: by how many standard errors; infinite where chance is no explanation.
        end: the index of the first value that is as before again; None: it lasts.
        limit: that was passed.
        period: the values from one spike to the next; 0: there are not several at one distance.
        info: whether it went the way that is no fault.
        at_once: whether the new level was reached from one value to the next.
    """

    at: int
    seen: int
    kind: str
    up: bool
    score: float = math.inf
    end: int | None = None
    limit: Limit | None = None
    period: int = 0
    info: bool = False
    at_once: bool = False


def onsets(rows: F64, least: F64, shares: F64) -> list[list[Change]]:
    """The changes of each series, in the order in which they are seen.

    Args:
        rows: [k, n] the series.
        least: [k, n] what the noise up to each value is at least.
        shares: [k, 4] the shares of the bounds that a rise, and a fall, has to pass; and these of
            what more than ``FUTURE`` steps show.
    """
    found: list[list[Change]] = [[] for _ in rows]
    if rows.shape[1] < LEAST:
        return found
    clean = _cleaned(rows)
    last = rows.shape[1] - LEAST_FUTURE
    trends = mann_kendall(clean, np.arange(LEAST_PAST, last + 1))
    for first in range(LEAST_PAST, last + 1, _AT_ONCE):
        stretch = slice(max(first - PAST, 0), first + _AT_ONCE + FARTHEST)
        places = np.arange(first, min(first + _AT_ONCE, last + 1))
        part = rows[:, stretch]
        moved = np.flatnonzero((part != part[:, :1]).any(axis=1))
        part, usual, floor = (one[moved, stretch] for one in (rows, clean, least))
        begin = first - LEAST_PAST
        own = trends[moved, begin : begin + len(places)], shares[moved]
        for row, onset in _between(part, usual, floor, places, stretch.start, *own):
            found[moved[row]].append(onset)
    return [sorted(each, key=lambda one: (one.seen, -one.score)) for each in found]


def _between(
    rows: F64, clean: F64, least: F64, places: I64, start: int, trends: F64, shares: F64
) -> Iterator[tuple[int, Change]]:
    """The row of each change at any of these places, and the change as it is first seen.

    Args:
        rows, clean, least: [k, n] a stretch of the series, without outliers, and its least noise.
        places: in the series.
        start: that of the stretch.
        trends: [k, m] Mann and Kendall's z of the past at each place.
        shares: of the bounds, as ``onsets`` has them.
    """
    pasts = np.minimum(places, PAST)
    count = rows.shape[1]
    ahead = np.concatenate((rows, np.zeros((len(rows), FARTHEST))), axis=1)
    for past in dict.fromkeys(pasts.tolist()):
        chosen = places[pasts == past]
        inside, end = int(chosen[0]) - start, int(chosen[-1]) + 1 - start
        before = sliding_window_view(clean, past, axis=1)[:, inside - past : end - past]
        after = sliding_window_view(ahead, FARTHEST, axis=1)[:, inside:end]
        slopes = np.abs(trends[:, pasts == past]) > _TREND[past >= 20]
        level, slope, rests = _lines(before.reshape(-1, past), slopes.ravel())
        future = after.reshape(-1, FARTHEST)
        rest = future - (level[:, None] + slope[:, None] * _AHEAD)
        likely = _may_differ(rests, rest, shares.min(axis=1).repeat(len(chosen)))
        if not likely.any():
            continue
        of, at = np.nonzero(likely.reshape(slopes.shape))
        places_of = chosen[at]
        seen = places_of[:, None] + _SIZES
        sides = rests[likely], future[likely], rest[likely], slope[likely] != 0.0
        scores = _scores(*sides, least[of[:, None], np.minimum(seen - start, count) - 1])
        strict = 1 + np.log(np.maximum(seen / 400, 1.0)) / 15  # more places for a chance
        bounds = (1 + 7 / past) * strict[..., None] * (_SHIFT, _DRIFT)
        bounds[seen - start > count] = np.inf  # there is no such future yet
        by_size = shares[of][:, np.where(_SIZES > FUTURE, 2, 0)[:, None] + (0, 1)]
        own = np.where(scores > 0.0, by_size[..., :1], by_size[..., 1:])
        passed = np.abs(scores) > own * bounds
        for one in np.flatnonzero(passed.any(axis=(1, 2))).tolist():
            size, kind = divmod(int(passed[one].argmax()), 2)
            score, end = float(scores[one, size, kind]), int(seen[one, size])
            found = Change(int(places_of[one]), end, (SHIFT, DRIFT)[kind], score > 0, abs(score))
            yield int(of[one]), found


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


@cache
def _weights(count: int) -> F64:
    """[FARTHEST, q] what a future is multiplied by for its shifts and drifts, as shares of bounds.

    They are divided by the least that the errors are for a past of so many values.
    """
    shift = _FIRSTS / _SIZES / np.sqrt(1 / count + 1 / _SIZES) / _SHIFT
    drift = _AHEAD[:, None] * _FIRSTS / np.sqrt(_POWERS + _WHOLE**2 / count) / _DRIFT
    return np.hstack((shift, drift[:, _DRIFTS])) / (1 + 7 / count) * math.sqrt(count - 3)


def _may_differ(rests: F64, rest: F64, shares: F64) -> NDArray[np.bool_]:
    """[q] where a shift or a drift may pass its bound: at some of many places.

    The error is no less than what the past varies by around its line.

    Args:
        rests: [q, p] what is left of the past.
        rest: [q, FARTHEST] what is left of what follows, if the past had gone on.
        shares: [q] the least share of the bounds.
    """
    most = np.abs(_weights(rests.shape[1]).T @ rest.T).max(axis=0, initial=0.0)
    found: NDArray[np.bool_] = most > (1 - _ROUNDING) * shares * np.sqrt(_dot(rests, rests))
    return found


def _scores(rests: F64, future: F64, rest: F64, trend: NDArray[np.bool_], least: F64) -> F64:
    """[q, sizes, 2] by how many standard errors a shift and a drift are off, at q places.

    Args:
        rests: [q, p] what is left of the past.
        future, rest: [q, FARTHEST] what follows, and what is left of it.
        trend: [q] whether the past has a trend.
        least: [q, sizes] what the noise is at least.
    """
    count, slopes = rests.shape[1], trend[:, None]
    square, product = _dot(rests, rests)[:, None], _dot(rests[:, 1:], rests[:, :-1])
    turns = np.diff(future, axis=1) ** 2 @ _FIRSTS[1:]
    turns -= (future[:, _SIZES - 1] - future[:, :1]) ** 2 / (_SIZES - 1)
    variance, inflation = _noise(square, product[:, None], turns, count)
    left = (square == 0.0) & (np.abs(rest[:, : _SIZES[1]]).min(axis=1, keepdims=True) > 0.0)
    least = np.where(left & (_SIZES[1] <= _SIZES), 0.0, least)
    error = np.sqrt(np.maximum(variance, np.maximum(least * least, 1e-300)) * inflation)
    lever = np.where(slopes, 12 / count**3, 0.0)
    level_error = np.where(slopes, 4, 1) / count
    shift = (rest @ _FIRSTS) / _SIZES / error
    shift /= np.sqrt(1 / count + 1 / _SIZES + lever * (count + _SIZES) ** 2 / 4)
    drift = ((rest * _AHEAD) @ _FIRSTS) / _POWERS / error
    drift /= np.sqrt(1 / _POWERS + (_WHOLE / _POWERS) ** 2 * level_error + lever)
    drift[:, ~_DRIFTS] = 0.0
    return np.stack((shift, drift), axis=2)


def _noise(square: F64, product: F64, turns: F64, count: int) -> tuple[F64, F64]:
    """[q, sizes] the variance of both sides, and what correlated neighbours add to it.

    What follows a change may be a level, a slope or a curve, so its noise is that of neighbours
    around their mean step. It is no less than the noise before: short series are equal by chance.

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
    """[q] the levels at which pasts [q, p] end, their slopes (0: no trend), and what is left."""
    slope = np.zeros(len(past))
    slope[slopes] = theil_sen(past[slopes])
    line = slope[:, None] * (np.arange(past.shape[1]) - (past.shape[1] - 1.0))
    level = medians(past - line)
    return level, slope, past - level[:, None] - line


def line_before(values: F64, at: int) -> tuple[float, float, float]:
    """The level, the slope and the robust deviation with which the values before a place end.

    They are on a line where Mann–Kendall finds a trend in them; else the slope is 0.
    """
    past = values[None, max(at - PAST, 0) : at]
    count = past.shape[1]
    slopes = np.abs(mann_kendall(past, np.array([count]))[:, 0]) > _TREND[count >= 20]
    level, slope, rests = _lines(past, slopes)
    return float(level[0]), float(slope[0]), float(levels(rests)[1][0])


def medians(rows: F64) -> F64:
    """Those of the last axis, of finite numbers: short rows are sooner sorted than parted.

    np.median would import numpy.ma, which takes as long as the evaluation of some MB.
    """
    rows = rows.copy()
    rows.sort(axis=-1)
    return middles(rows)


def middles(ordered: F64) -> F64:
    """The medians of rows that are sorted."""
    half = ordered.shape[-1] // 2
    if ordered.shape[-1] % 2:
        return ordered[..., half]
    middle: F64 = (ordered[..., half - 1] + ordered[..., half]) / 2
    return middle


def mean_change(before: F64, after: F64) -> tuple[float, float]:
    """By how much the mean of values differs from that of others before, and its standard error."""
    error = math.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    return float(after.mean() - before.mean()), error


def levels(rows: F64) -> tuple[F64, F64]:
    """The medians of the last axis, and the robust standard deviations from them (1.4826 MADs)."""
    middle = medians(rows)
    return middle, 1.4826 * medians(np.abs(rows - middle[..., None]))


def _dot(left: F64, right: F64) -> F64:
    """[…] the products of rows […, n]."""
    product: F64 = (left[..., None, :] @ right[..., :, None])[..., 0, 0]
    return product


def mann_kendall(values: F64, places: I64) -> F64:
    """[k, m] the standardised S of Mann and Kendall of the past at each place: 0 without a trend.

    Ties are not corrected for. A past gains the signs of its last value against those before it,
    and loses those of the value that leaves it, so that S is a running sum along the series [k, n].
    The places follow each other.
    """
    counts = np.minimum(places, PAST)
    ended = values[:, : int(places[-1])]
    gained, lost = np.zeros((2, len(values), ended.shape[1] + 1), dtype=np.int8)
    whole = max(ended.shape[1] - PAST, 0)
    for distance in range(1, int(counts.max())):
        later, earlier = ended[:, distance:], ended[:, :-distance]
        signs = (later > earlier).view(np.int8) - (later < earlier).view(np.int8)
        gained[:, distance + 1 :] += signs
        lost[:, PAST + 1 :] += signs[:, :whole]
    score = np.cumsum(gained - lost, axis=1, dtype=np.int32)[:, places]
    spread = np.sqrt(counts * (counts - 1) * (2 * counts + 5) / 18)
    return np.where(score, (score - np.copysign(1.0, score)) / spread, 0.0)


def theil_sen(rows: F64) -> F64:
    """[m] the median of the slopes of all pairs of each row [m, n]."""
    first, second = np.triu_indices(rows.shape[1], 1)
    distances, found = (second - first).astype(np.float64), np.zeros(len(rows))
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        slopes = (part.take(second, axis=1) - part.take(first, axis=1)) / distances
        slopes.sort(axis=1)
        found[start : start + _ROWS] = middles(slopes)
    return found


def usual(scaled: F64, at: int) -> tuple[float, float]:
    """The median and the robust deviation of up to 30 values before a place; NaN before 10."""
    level, spread = usual_of(scaled, np.array([at]))
    return level.item(), spread.item()


def usual_of(scaled: F64, places: I64) -> tuple[F64, F64]:
    """[m] those before some places."""
    level, spread = np.full((2, len(places)), np.nan)
    whole = places >= PAST
    if whole.any():
        windows = sliding_window_view(scaled, PAST)
        level[whole], spread[whole] = levels(windows[places[whole] - PAST])
    for at in np.flatnonzero(~whole & (places >= LEAST_PAST)).tolist():
        level[at], spread[at] = levels(scaled[: places[at]])
    return level, spread


# ---- what goes one way from the first step on ---------------------------------------------------

PARTS, _LEAST_PART = 6, 4
"""Parts of a run whose means are compared, and the least steps of one."""
_ERRORS, _SHARE = 2.0, 0.25
"""The least move from one part to the next, in standard errors, and as a share of the mean move."""


def steady_move(scaled: F64, steady: Steady) -> tuple[Change, float] | None:
    """A change that went one way all along, by a factor, and the middle of its levels; or None.

    Healthy runs drift too: the reward rises, the KL grows, the entropy falls somewhat. So a metric
    has to go the way that harms, by the factor of its row of ``watched.TABLE``, and steadily.

    The values up to one are cut into sixths, and each is beyond the one before. What a longer
    series has at its end does not count, so that what is found stays found.

    Args:
        scaled: [n] the logarithms of the series.
        steady: which way, and by which factor.
    """
    counts = np.arange(PARTS * _LEAST_PART, len(scaled) + 1)
    sizes = counts // PARTS
    values = scaled if steady.way == UP else -scaled
    sums = np.cumsum(np.append(0.0, values))
    edges = (counts - sizes * PARTS)[:, None] + sizes[:, None] * np.arange(PARTS + 1)
    means = np.diff(sums[edges], axis=1) / sizes[:, None]
    moves = np.diff(means, axis=1)
    squares = np.cumsum(np.diff(values) ** 2)[counts - 2] / (counts - 1)
    error = np.sqrt(squares / sizes)
    enough = moves.mean(axis=1) * PARTS >= math.log(steady.factor)
    least = np.maximum(_ERRORS * error, _SHARE * moves.mean(axis=1))
    shown = np.flatnonzero(enough & (moves.min(axis=1) > least))
    if not len(shown):
        return None
    first, last = means[shown[0], 0], means[shown[0], -1]
    middle = (first + last) / 2 * (1 if steady.way == UP else -1)
    score = (last - first) / error[shown[0]] if error[shown[0]] else math.inf
    seen = int(counts[shown[0]])
    return Change(0, seen, TREND, steady.way == UP, float(score)), float(middle)
