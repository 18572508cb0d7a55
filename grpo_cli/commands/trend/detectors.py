"""What is wrong with series: levels, slopes, single steps, limits, impossible values.

Every detector looks back only: a change is decided by the values up to the one that shows it, and
stays when the series gets longer. A series is in one state at a time: a change lasts until its
values are back, and what shows it again meanwhile is no other change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.trend.onsets import (
    FUTURE,
    LEAST,
    LEAST_FUTURE,
    LEAST_PAST,
    PAST,
    levels,
    onsets,
)
from grpo_cli.commands.trend.watched import DOWN, PRACTICE, UP, Limit, Watch

SHIFT, DRIFT, SPIKE, LIMIT, IMPOSSIBLE = "shift", "drift", "spike", "limit", "impossible"
STUCK = "stuck"
_SPIKE, _TENFOLD = 15.0, 10.0
"""Robust standard deviations of a single step from those before it; where it is ten times that."""
_BEFORE = 20
"""Steps that a series must have before a single one is far from them."""
_OUTSIDE = 10.0
"""The least factor, of what was largest so far, of a step of a series with both signs."""
_OF, _MOST = 5, 3
_LAG, _CLEAR, _CLEAR_MEAN = 10, 2.5, 1.75
"""Steps between what was usual and a window; deviations from it of a value, and of a mean."""
_COARSE = 0.25
"""The noise of a share, as an angle, beyond which it is of fewer than four."""
_LEAST_FACTOR = math.log(1.2)
"""The least factor of a shift or drift of what is positive."""
_INSIDE = 2.0
"""Robust deviations from the old level that a value which is as before may have."""
_NEARER = 0.25
"""The share of a change by which such a value may be away from the old level."""
RECENT = 8
"""Values before a change from which it has to have moved the way that it states."""
_LEAST_MOVE = 0.06
"""The share of these values that what is positive has to have moved by."""
_FALLEN = 0.7
"""The share of its level before to which what accumulates has to fall."""
_QUARTER = 0.25
"""That of a constant."""
_PERIODS = 3
"""Equal distances between single steps that are a period."""
_BACK = 4
"""Values in a row that are back to the old level."""


class Change(NamedTuple):
    """Where a series went wrong.

    Attributes:
        at: the index of the first value that is different.
        seen: how many values of the series show it.
        kind: "shift", "drift", "spike", "limit", "impossible" or "stuck".
        up: whether it went up.
        score: by how many standard errors; infinite where chance is no explanation.
        end: the index of the first value that is as before again; None: it lasts.
        limit: that was passed.
        period: the values from one spike to the next; 0: there are not several at one distance.
        info: whether it went the way that is no fault.
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


class Usual(NamedTuple):
    """[n + 1] the medians and robust deviations of up to 30 values before each; NaN before 10."""

    level: F64
    spread: F64

    @classmethod
    def of(cls, values: F64) -> Usual:
        """Those of a series."""
        level, spread = np.full((2, len(values) + 1), np.nan)
        if len(values) and (values == values[0]).all():
            level[LEAST_PAST:], spread[LEAST_PAST:] = values[0], 0.0
            return cls(level, spread)
        for at in range(LEAST_PAST, min(PAST, len(values) + 1)):
            level[at], spread[at] = levels(values[:at])
        if len(values) >= PAST:
            level[PAST:], spread[PAST:] = levels(sliding_window_view(values, PAST))
        return cls(level, spread)


def changes(series: Sequence[tuple[Watch, F64]]) -> list[list[Change]]:
    """The changes of each series, in their order. Values are finite."""
    scaled = [watch.scaled(values) for watch, values in series]
    shifted: list[list[Change]] = [[] for _ in series]
    for count in {len(one) for one in scaled}:
        alike = [
            at
            for at, (watch, _) in enumerate(series)
            if len(scaled[at]) == count >= LEAST and (watch.shift or watch.drift)
        ]
        rows, least = (
            np.array([each[at] for at in alike]).reshape(len(alike), count)
            for each in (scaled, [watch.noise(values) for watch, values in series])
        )
        shares = np.array([series[at][0].bounds for at in alike]).reshape(len(alike), 2)
        for at, found in zip(alike, onsets(rows, least, shares), strict=True):
            shifted[at] = [Change(o.at, o.seen, o.kind, o.score > 0, abs(o.score)) for o in found]
    return [
        _followed(*one, each, found)
        for one, each, found in zip(series, scaled, shifted, strict=True)
    ]


def _followed(watch: Watch, values: F64, scaled: F64, shifted: Sequence[Change]) -> list[Change]:
    """The changes of one series, without what repeats them while they last."""
    if len(values) == 0:
        return []
    usual = Usual.of(scaled)
    kept, other = list[Change](), list[Change]()
    for one in shifted:
        if _counts(watch, values, scaled, usual, one):
            (other if is_info(watch, one) else kept).append(one)
    single = [*_spikes(watch, scaled, usual)] if watch.spikes else []
    signs = [
        *_impossible(watch, values),
        *_stuck(watch, values),
        *_vanished(watch, values),
        *(one for limit in watch.limits for one in _beyond(watch, limit, values, scaled, usual)),
        *kept,
    ]
    found = _lasting(signs, scaled, usual)
    infos = _lasting(other, scaled, usual)
    infos = [one._replace(info=True) for one in infos if not any(_tells(i, one) for i in found)]
    return sorted([*found, *_single(single, found, scaled, usual), *infos], key=lambda one: one.at)


def _lasting(signs: Sequence[Change], scaled: F64, usual: Usual) -> list[Change]:
    """Changes with their ends, without those that repeat the one before."""
    found: list[Change] = []
    for sign in sorted(signs, key=lambda one: (one.seen, -one.score)):
        known = next((at for at, before in enumerate(found) if _repeats(before, sign)), None)
        if known is None:
            found.append(_until_back(_since(sign, scaled, usual), scaled, usual))
        elif _confirms(found[known], sign):
            found[known] = found[known]._replace(score=sign.score, kind=sign.kind)
    return found


def _confirms(change: Change, sign: Change) -> bool:
    """Whether a sign of the next few values shows the change more clearly."""
    clearer = sign.up == change.up and sign.score > change.score
    both = {sign.kind, change.kind} <= {SHIFT, DRIFT}
    return clearer and both and sign.seen <= change.seen + LEAST_FUTURE


def _repeats(before: Change, sign: Change) -> bool:
    """Whether a sign is of the change before it, or of its end."""
    if IMPOSSIBLE in (before.kind, sign.kind):
        return sign.kind == before.kind
    return before.end is None or sign.at < before.end + FUTURE


def _counts(watch: Watch, values: F64, scaled: F64, usual: Usual, sign: Change) -> bool:
    """Whether a shift or drift is large enough to matter, and no mere end of a trend.

    What came since it began is beyond the last values before by what these usually vary.
    """
    if not _is_beyond(_since(sign, scaled, usual), scaled, usual.spread[sign.at]):
        return False
    after = slice(max(sign.at, sign.seen - LEAST_FUTURE), sign.seen)
    level, recent = (
        float(np.median(values[part])) for part in (after, slice(max(sign.at - RECENT, 0), sign.at))
    )
    past = values[max(sign.at - PAST, 0) : sign.at]
    share = _QUARTER if (past == past[0]).all() else _LEAST_MOVE if watch.is_log else 0.0
    least = share * abs(recent)
    if (level - recent) * (1 if sign.up else -1) <= least or (sign.up and level < watch.least):
        return False
    if watch.scale == "growth" and not sign.up and not _has_fallen(values, sign):
        return False
    change = abs(float(np.median(scaled[after])) - usual.level[sign.at])
    return watch.scale not in ("log", "growth") or bool(change > _LEAST_FACTOR)


def _has_fallen(values: F64, sign: Change) -> bool:
    """Whether what accumulates became less, and did not only grow more slowly."""
    before, since = np.median(values[max(sign.at - PAST // 2, 0) : sign.at]), values[sign.at :]
    since = since[: sign.seen - sign.at]
    return bool(since.max() < before and np.median(since) < _FALLEN * before)


def _is_beyond(sign: Change, scaled: F64, least: float) -> bool:
    """Whether the values since a change are beyond the last ones before it, the way it states."""
    before = np.median(scaled[max(sign.at - RECENT, 0) : sign.at])
    move = float(np.median(scaled[sign.at : sign.seen]) - before)
    return (move if sign.up else -move) > least


def _since(sign: Change, scaled: F64, usual: Usual) -> Change:
    """The sign, at the step since which the series has been outside of what was usual.

    It stays where it is if a value that is back by chance hides that.
    """
    timed = sign.kind in (SHIFT, DRIFT) or (sign.limit is not None and sign.limit.times)
    if not timed:
        return sign
    first = max(sign.at - (0 if sign.limit is None else _LAG), LEAST_PAST)
    away = scaled[first : sign.seen] - usual.level[first]
    away = away if sign.up else -away
    inside = away <= max(_INSIDE * usual.spread[first], _NEARER * float(np.median(away[-3:])))
    last = np.flatnonzero(inside)
    begun = first + int(last[-1]) + 1 if len(last) else first
    later = sign._replace(at=min(begun, max(sign.at, sign.seen - 2)))
    shows = sign.limit is not None or _is_beyond(later, scaled, usual.spread[sign.at])
    return later if shows else sign


def _until_back(change: Change, scaled: F64, usual: Usual) -> Change:
    """The change with its end: four values in a row nearer to the old level than to the new."""
    if change.kind in (IMPOSSIBLE, SPIKE) or not change.at >= LEAST_PAST:
        return change
    middle = (usual.level[change.at] + float(np.median(scaled[change.at : change.seen]))) / 2
    later = scaled[change.seen :]
    back = later < middle if change.up else later > middle
    if len(back) < _BACK:
        return change
    ends = np.flatnonzero(sliding_window_view(back, _BACK).all(axis=1))
    return change._replace(end=change.seen + int(ends[0])) if len(ends) else change


# ---- single steps -------------------------------------------------------------------------------


def _spikes(watch: Watch, scaled: F64, usual: Usual) -> Iterator[int]:
    """The places of values that are far above all that is usual."""
    values = np.abs(scaled) if watch.scale == "linear" else scaled
    if watch.scale == "linear":
        usual = Usual.of(values)
        factor = values > _OUTSIDE * np.maximum.accumulate(np.append(0.0, values))[:-1]
    else:
        factor = values - usual.level[:-1] > math.log(watch.spikes)
    away, spread = np.abs(values - usual.level[:-1]), usual.spread[:-1]
    far = away > _SPIKE * spread
    if watch.scale != "linear":
        far |= (away > _TENFOLD * spread) & (away > math.log(10.0))
    far[:_BEFORE] = False
    yield from np.flatnonzero(far & factor).tolist()


def _single(
    places: Sequence[int], found: Sequence[Change], scaled: F64, usual: Usual
) -> Iterator[Change]:
    """The spikes that begin no other change; one where they have a period, a level that stays."""
    free = [at for at in places if not any(_within(one, at) for one in found)]
    gaps = np.diff(free)
    for first in range(len(free) - _PERIODS):
        gap = int(gaps[first])
        if gap > 1 and (gaps[first : first + _PERIODS] == gap).all():
            yield from (Change(at, at + 1, SPIKE, up=True) for at in free[:first])
            yield Change(free[first], free[first] + 1, SPIKE, up=True, period=gap)
            return
    stays: Change | None = None
    for at in (at for at, before in zip(free, (-2, *free), strict=False) if at > before + 1):
        if stays is not None and _within(stays, at):
            continue
        if {*range(at, at + LEAST_FUTURE)} <= {*free}:
            away = scaled[at : at + LEAST_FUTURE] - usual.level[at]
            off, spread = float(np.median(np.abs(away))), float(usual.spread[at])
            score = off / spread * math.sqrt(LEAST_FUTURE) if spread else math.inf
            sign = Change(at, at + LEAST_FUTURE, SHIFT, up=bool(away[0] > 0.0), score=score)
            stays = _until_back(sign, scaled, usual)
            yield stays
        else:
            yield Change(at, at + 1, SPIKE, up=True)


def _tells(change: Change, info: Change) -> bool:
    """Whether a change says what information does: in its course, or at its beginning."""
    return _within(change, info.at) or (change.up == info.up and info.at < change.at < info.seen)


def _within(change: Change, at: int) -> bool:
    last = change.seen if change.end is None else change.end + FUTURE
    return change.at - 1 <= at and (change.end is None or at < last)


# ---- limits and what cannot be ------------------------------------------------------------------


def _beyond(watch: Watch, limit: Limit, values: F64, scaled: F64, usual: Usual) -> Iterator[Change]:
    """Where three of five steps pass a limit; of practice: and come from a level that does not.

    Shares of a few groups pass one by the mean of five steps, since each of them is coarse.
    """
    sign = 1.0 if limit.above else -1.0
    passed, enough = sign * (values - limit.bound) > 0.0, _MOST
    if limit.source != PRACTICE:
        enough = min(_MOST, len(values) // 2 + 1)
    elif limit.room is not None:
        known, level, spread = _earlier(usual, _OF, PAST // 2)
        means = np.convolve(scaled, np.full(_OF, 1.0 / _OF))[: len(values)]
        before = np.sin(level) ** 2  # the share that the angle is of
        bound = np.maximum(limit.bound, 1 - limit.room * (1 - before))
        passed = (
            known & (means - level > _CLEAR_MEAN * spread) & (means > np.arcsin(np.sqrt(bound)))
        )
        passed, enough = passed & (watch.noise(values) <= _COARSE), 1
    else:
        lag, least = (_LAG + _OF, PAST) if limit.times else (_OF, LEAST_PAST)
        known, level, spread = _earlier(usual, lag, least)
        if limit.times:
            passed = sign * (scaled - level) > sign * math.log(limit.bound)
        passed &= known & (sign * (scaled - level) > _CLEAR * spread)
    counts = np.convolve(passed, np.ones(_OF if enough > 1 else 1))[: len(values)]
    for last in np.flatnonzero(passed & (counts >= enough)).tolist():
        first = max(last - _OF + 1, 0)
        inside = passed if enough > 1 else values > limit.bound
        at = first + int(np.argmax(inside[first : last + 1]))
        yield Change(at, last + 1, LIMIT, limit.above, limit=limit)


def _earlier(usual: Usual, lag: int, least: int) -> tuple[NDArray[np.bool_], F64, F64]:
    """[n] whether enough values came before so many, and what was usual then."""
    places = np.arange(1, len(usual.level)) - lag
    known, places = places >= least, np.maximum(places, 0)
    return known, usual.level[places], usual.spread[places]


_ROUNDED = 1e-9
"""What rounding adds to a share of 1."""


def _impossible(watch: Watch, values: F64) -> Iterator[Change]:
    low, high = watch.span
    wrong = (values < low - _ROUNDED) | (values > high + _ROUNDED)
    for at in np.flatnonzero(wrong).tolist()[:1]:
        yield Change(at, at + 1, IMPOSSIBLE, up=bool(values[at] > high))


def _stuck(watch: Watch, values: F64) -> Iterator[Change]:
    """Where a series has the value at which nothing is learnt from its first step on."""
    others = np.flatnonzero(values != watch.stuck)
    count = int(others[0]) if len(others) else len(values)
    if count >= _OF:
        yield Change(0, _OF, STUCK, up=watch.stuck != 0.0, end=count if len(others) else None)


def _vanished(watch: Watch, values: F64) -> Iterator[Change]:
    """Where numbers that were never 0 become exactly 0 and stay so: no noise does that.

    The onset test takes the growth before it for noise.
    """
    if not watch.is_log:
        return
    runs = np.convolve(values == 0.0, np.ones(LEAST_FUTURE))[: len(values)]
    for last in np.flatnonzero(runs == LEAST_FUTURE).tolist():
        at = last - LEAST_FUTURE + 1
        if at >= LEAST_PAST and (values[at - LEAST_PAST : at] != 0.0).all():
            yield Change(at, last + 1, SHIFT, up=False)
            return


def is_info(watch: Watch, change: Change) -> bool:
    """Whether a change is no fault: a level that went the other way."""
    ways = {SHIFT: watch.shift, DRIFT: watch.drift}.get(change.kind)
    return ways is not None and (UP if change.up else DOWN) not in ways
