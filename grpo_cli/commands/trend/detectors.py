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

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.onsets import (
    FUTURE,
    LEAST,
    LEAST_FUTURE,
    LEAST_PAST,
    PAST,
    levels,
    line_before,
    medians,
    onsets,
)
from grpo_cli.commands.trend.steady import steady_move
from grpo_cli.commands.trend.watched import DOWN, UP, Limit, Steady, Watch

SHIFT, DRIFT, SPIKE, LIMIT, IMPOSSIBLE = "shift", "drift", "spike", "limit", "impossible"
STUCK, TREND = "stuck", "trend"
_SPIKES = ((15.0, 1.0), (10.0, 10.0))
"""Robust standard deviations of a single step from those before it, and its factor of them."""
_SHARES = ((5.8, 30.0),)
"""The same of the distance of an effective sample size from 1, whose tails are light: in 47 healthy
runs none is both, and after a step of 20 times the learning rate it is in 27 of 27."""
_BEFORE = 20
"""The other steps that a single one is far from: those before it, of the first 21 all others."""
_OUTSIDE = 10.0
"""The least factor, of what was largest so far, of a step of a series with both signs."""
_OF, _MOST = 5, 3
_CLEAR = 1.75
"""Deviations of a mean of five steps from what was usual."""
_COARSE = 0.25
"""The noise of a share, as an angle, beyond which it is of fewer than four."""
_LEAST_FACTOR = math.log(1.2)
"""The least factor of a shift or drift of what is positive."""
_INSIDE = 2.0
"""Robust deviations from the old level that a value which is as before may have."""
_LEFT = 1.2
"""Robust deviations by which a value that left what came before is beyond its last eight."""
_PARTLY = 0.28
"""The share of the move of the value after it that such a value has made: noise makes less."""
_OUTWEIGHS = 1.5
"""So many values outside of the old level one inside outweighs: chance brings single ones back."""
_NEARER = 0.25
"""The share of a change by which such a value may be away from the old level."""
RECENT = 8
"""Values before a change from which it has to have moved the way that it states."""
_LEAST_MOVE = 0.06
"""The share of these values that what is positive has to have moved by."""
_SURE = 10.0
"""Standard errors from which on a rise may be as small as that."""
_STEEPER = 2.0
"""The factor of the fall that the line before predicts from which on a fall is a change."""
_FALLEN = 0.7
"""The share of its level before to which what accumulates has to fall."""
_CLEAR_OF = 1.0
"""Widths of the range of all earlier values by which ten values have to be outside of it."""
_QUARTER = 0.25
"""That of a constant."""
_STAYS = 0.5
"""The share of a single step's distance from what was usual that those after it have as well."""
_PERIODS = 3
"""Equal distances between single steps that are a period."""
_BACK = 4
"""Values in a row that are back to the old level."""


class Change(NamedTuple):
    """Where a series went wrong.

    Attributes:
        at: the index of the first value that is different.
        seen: how many values of the series show it.
        kind: "shift", "drift", "spike", "limit", "impossible", "stuck", or "trend" where it goes
            one way from the first value on.
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


def changes(series: Sequence[tuple[Watch, F64]]) -> list[list[Change]]:
    """The changes of each series, in their order. Values are finite."""
    scaled = [watch.scaled(values) for watch, values in series]
    shifted: list[list[Change]] = [[] for _ in series]
    alike: dict[int, list[int]] = {}
    for at, (watch, values) in enumerate(series):
        if len(values) >= LEAST and (watch.shift or watch.drift):
            alike.setdefault(len(values), []).append(at)
    for places in alike.values():
        rows = np.array([scaled[at] for at in places])
        least = np.array([series[at][0].noise(series[at][1]) for at in places])
        shares = np.array([series[at][0].bounds for at in places])
        for at, found in zip(places, onsets(rows, least, shares), strict=True):
            shifted[at] = [Change(o.at, o.seen, o.kind, o.score > 0, abs(o.score)) for o in found]
    return [
        _followed(*one, each, found) if len(each) else []
        for one, each, found in zip(series, scaled, shifted, strict=True)
    ]


def _followed(watch: Watch, values: F64, scaled: F64, shifted: Sequence[Change]) -> list[Change]:
    """The changes of one series, without what repeats them while they last."""
    shifted = [*shifted, *(_left_range(scaled) if watch.shift else ())]
    shifted = [one for one in shifted if _counts(watch, values, scaled, one)]
    signs = [
        *_impossible(watch, values),
        *_stuck(watch, values),
        *_vanished(watch, values),
        *(one for limit in watch.limits for one in _beyond(watch, limit, values, scaled)),
        *(one for one in shifted if not is_info(watch, one)),
    ]
    found = _lasting(signs, scaled)
    if watch.steady is not None and scaled is not values:  # logarithms
        found += _trend(watch.steady, scaled, found)
    other = _lasting([one for one in shifted if is_info(watch, one)], scaled)
    infos = (
        one._replace(info=True)
        for one in other
        if not any(
            _within(each, one.at) or (each.up == one.up and one.at < each.at < one.seen)
            for each in found
        )
    )
    single = _spikes(watch, values, scaled) if watch.spikes else []
    spikes = _single(single, found, scaled, up=watch.scale != "below 1")
    return sorted([*found, *spikes, *infos], key=lambda one: one.at)


def _lasting(signs: Sequence[Change], scaled: F64) -> list[Change]:
    """Changes with their ends, without those that repeat the one before.

    Where a sign of the next few values shows a change more clearly, it has that score.
    """
    found: list[Change] = []
    for sign in sorted(signs, key=lambda one: (one.seen, -one.score)):
        at = next((at for at, before in enumerate(found) if _repeats(before, sign)), None)
        if at is None:
            before = line_before(scaled, sign.at)[::2] if sign.kind in (SHIFT, DRIFT) else None
            begun = _begun(_since(sign, scaled, before), scaled)
            found.append(_until_back(begun, scaled))
            continue
        known = found[at]
        both = {sign.kind, known.kind} <= {SHIFT, DRIFT} and sign.up == known.up
        if both and sign.score > known.score and sign.seen <= known.seen + LEAST_FUTURE:
            found[at] = known._replace(score=sign.score, kind=sign.kind)
    return found


def _repeats(before: Change, sign: Change) -> bool:
    """Whether a sign is of the change before it, or of its end."""
    if IMPOSSIBLE in (before.kind, sign.kind):
        return sign.kind == before.kind
    return before.end is None or sign.at < before.end + FUTURE


def _counts(watch: Watch, values: F64, scaled: F64, sign: Change) -> bool:
    """Whether a shift or drift is large enough to matter, and no mere end of a trend.

    What came since it began is beyond the last values before by what these usually vary.
    """
    usual, spread = _usual(scaled, sign.at)
    if not _is_beyond(_since(sign, scaled), scaled, spread) or _goes_on(watch, values, sign):
        return False
    after = slice(max(sign.at, sign.seen - LEAST_FUTURE), sign.seen)
    level = float(medians(values[after]))
    recent = float(medians(values[max(sign.at - RECENT, 0) : sign.at]))
    past = values[max(sign.at - PAST, 0) : sign.at]
    rise = watch.rise * max(1.0, (sign.seen - sign.at) / RECENT)
    least = rise if sign.up and sign.score < _SURE else _LEAST_MOVE
    share = _QUARTER if (past == past[0]).all() else least if watch.is_log else 0.0
    moved = level - recent if sign.up else recent - level
    if moved <= share * abs(recent) or (sign.up and level < watch.least):
        return False
    if sign.up and watch.least == watch.span[1] and (past == watch.least).any():
        return False  # all of them is nothing new
    if watch.scale == "growth" and not sign.up and not _has_fallen(values, sign):
        return False
    change = abs(float(medians(scaled[after])) - usual)
    return not watch.is_log or bool(change > _LEAST_FACTOR)


def _goes_on(watch: Watch, values: F64, sign: Change) -> bool:
    """Whether a fall only goes on along the line before it, which is steeper on a log scale."""
    if not watch.is_log or sign.up:
        return False
    level, slope, _ = line_before(values, sign.at)
    end = min(sign.seen, len(values))
    after = float(medians(values[max(sign.at, end - LEAST_FUTURE) : end]))
    expected = slope * (end - sign.at - (LEAST_FUTURE - 1) / 2)
    return expected < 0.0 and after - level > _STEEPER * expected


def _has_fallen(values: F64, sign: Change) -> bool:
    """Whether what accumulates became less, and did not only grow more slowly."""
    before, since = medians(values[max(sign.at - PAST // 2, 0) : sign.at]), values[sign.at :]
    since = since[: sign.seen - sign.at]
    return bool(since.max() < before and medians(since) < _FALLEN * before)


def _is_beyond(sign: Change, scaled: F64, least: float) -> bool:
    """Whether the values since a change are beyond the last ones before it, the way it states."""
    before = medians(scaled[max(sign.at - RECENT, 0) : sign.at])
    move = float(medians(scaled[sign.at : sign.seen]) - before)
    return (move if sign.up else -move) > least


def _since(sign: Change, scaled: F64, before: tuple[float, float] | None = None) -> Change:
    """The sign, at the step since which the series has mostly been outside of what was usual.

    It stays where it is if a value that is back by chance hides that. ``before``: the level and
    the deviation at the end of what came before, where that had a trend.
    """
    if sign.kind not in (SHIFT, DRIFT):
        return sign
    usual = _usual(scaled, sign.at)
    level, spread = before or usual
    away = (scaled[sign.at : sign.seen] - level) * (1 if sign.up else -1)
    inside = away <= max(_INSIDE * spread, _NEARER * float(medians(away[-3:])))
    path = np.append(0, np.cumsum(np.where(inside, _OUTWEIGHS, -1.0)))
    begun = sign.at + int(np.flatnonzero(path == path.max())[-1])
    later = sign._replace(at=min(begun, max(sign.at, sign.seen - 2)))
    return later if _is_beyond(later, scaled, usual[1]) else sign


def _begun(sign: Change, scaled: F64) -> Change:
    """The sign, at the first of the values before it that already left what came before them."""
    first, values = sign.at, scaled if sign.up else -scaled
    while sign.kind in (SHIFT, DRIFT) and first > LEAST_PAST:
        recent = values[max(first - 1 - RECENT, 0) : first - 1]
        level, _, spread = line_before(values, first - 1)
        nearer = level + _PARTLY * (values[first] - level)
        if values[first - 1] <= max(recent.max() + _LEFT * spread, nearer):
            break
        first -= 1
    return sign._replace(at=first)


def _until_back(change: Change, scaled: F64) -> Change:
    """The change with its end: four values in a row nearer to the old level than to the new."""
    if change.kind in (IMPOSSIBLE, SPIKE) or not change.at >= LEAST_PAST:
        return change
    middle = (_usual(scaled, change.at)[0] + float(medians(scaled[change.at : change.seen]))) / 2
    return _until_beyond(change, middle, scaled)


def _until_beyond(change: Change, middle: float, scaled: F64) -> Change:
    """The change with its end: four values in a row on the other side of a level."""
    later = scaled[change.seen :]
    back = later < middle if change.up else later > middle
    if len(back) < _BACK:
        return change
    ends = np.flatnonzero(sliding_window_view(back, _BACK).all(axis=1))
    return change._replace(end=change.seen + int(ends[0])) if len(ends) else change


def _trend(steady: Steady, scaled: F64, found: Sequence[Change]) -> Iterator[Change]:
    """What went one way all along, where no change of that way says it already."""
    moved = steady_move(scaled, steady)
    if moved is None:
        return
    up = steady.way == UP
    known = (one for one in found if one.kind in (SHIFT, DRIFT) and one.up == up)
    if not any(one.seen <= moved.seen and _within(one, moved.seen) for one in known):
        sign = Change(0, moved.seen, TREND, up, moved.score)
        yield _until_beyond(sign, moved.middle, scaled)


def _usual(scaled: F64, at: int) -> tuple[float, float]:
    """The median and the robust deviation of up to 30 values before a place; NaN before 10."""
    level, spread = _usual_of(scaled, np.array([at]))
    return level.item(), spread.item()


def _usual_of(scaled: F64, places: I64) -> tuple[F64, F64]:
    """[m] those before some places."""
    level, spread = np.full((2, len(places)), np.nan)
    whole = places >= PAST
    if whole.any():
        windows = sliding_window_view(scaled, PAST)
        level[whole], spread[whole] = levels(windows[places[whole] - PAST])
    for at in np.flatnonzero(~whole & (places >= LEAST_PAST)).tolist():
        level[at], spread[at] = levels(scaled[: places[at]])
    return level, spread


# ---- single steps -------------------------------------------------------------------------------


def _spikes(watch: Watch, raw: F64, scaled: F64) -> list[int]:
    """The places of values that are far above all that is usual.

    Of a share, those at which nothing is learnt, by the chance that its groups are so few.
    """
    linear, falls = watch.scale == "linear", watch.scale == "below 1"
    values = np.abs(scaled) if linear else scaled
    if len(values) <= _BEFORE:
        return []
    most = np.maximum.accumulate(np.append(0.0, values))[:-1]
    others = np.array([np.delete(values[: _BEFORE + 1], at) for at in range(_BEFORE)])
    most[:_BEFORE] = others.max(axis=1)
    likely = np.ones(len(values), dtype=np.bool_)
    if linear:
        likely = values > _OUTSIDE * most
    elif watch.scale == "share":
        likely = raw == watch.stuck
    elif len(values) > PAST:
        away = values[PAST:] - medians(sliding_window_view(values[:-1], PAST))
        likely[PAST:] = (-away if falls else away) > math.log(watch.spikes)
    likely[0] = False  # nothing is before it
    places = np.flatnonzero(likely)
    level, spread = _usual_of(values, places)
    early = places < _BEFORE
    level[early], spread[early] = (one[places[early]] for one in levels(others))
    away = level - values[places] if falls else values[places] - level
    if linear:
        far = away > _SPIKES[0][0] * spread
    elif watch.scale == "share":
        far = away > watch.spikes * np.maximum(watch.noise(raw)[places], spread)
    else:
        rules = _SHARES if falls else _SPIKES
        far = np.any([(away > m * spread) & (away > math.log(f)) for m, f in rules], axis=0)
        far &= away > math.log(watch.spikes)
    return list(map(int, places[far]))


def _single(
    places: Sequence[int], found: Sequence[Change], scaled: F64, *, up: bool
) -> Iterator[Change]:
    """The spikes that begin no other change; one where they have a period, a level that stays."""
    free = [at for at in places if not any(_within(one, at) for one in found)]
    gaps = np.diff(free)
    for first in range(len(free) - _PERIODS):
        gap = int(gaps[first])
        if gap > 1 and (gaps[first : first + _PERIODS] == gap).all():
            yield from (_spike(at, up=up) for at in free[:first])
            yield _spike(free[first], up=up)._replace(period=gap)
            return
    stays: Change | None = None
    for at in (at for at, before in zip(free, (-2, *free), strict=False) if at > before + 1):
        if stays is not None and _within(stays, at):
            continue
        level, spread = _usual(scaled, at)
        away = scaled[at : at + LEAST_FUTURE] - level
        if len(away) == LEAST_FUTURE and (away / away[0] > _STAYS).all():
            off = abs(float(medians(away)))
            score = off / spread * math.sqrt(LEAST_FUTURE) if spread else math.inf
            sign = Change(at, at + LEAST_FUTURE, SHIFT, up=bool(away[0] > 0.0), score=score)
            stays = _until_back(sign, scaled)
            yield stays
        else:
            yield _spike(at, up=up)


def _spike(at: int, *, up: bool) -> Change:
    return Change(at, max(at, _BEFORE) + 1, SPIKE, up)


def _within(change: Change, at: int) -> bool:
    last = change.seen if change.end is None else change.end + FUTURE
    return change.at - 1 <= at and (change.end is None or at < last)


# ---- limits and what cannot be ------------------------------------------------------------------


def _beyond(watch: Watch, limit: Limit, values: F64, scaled: F64) -> Iterator[Change]:
    """Where three of five steps pass a published limit, or the mean of five one of practice.

    Such a mean of shares has to come from a level that does not pass it, and each share from more
    than a few groups.
    """
    if limit.room is None:
        passed = values > limit.bound if limit.above else values < limit.bound
        enough, inside = min(_MOST, len(values) // 2 + 1), passed
    else:
        means = np.convolve(scaled, np.full(_OF, 1.0 / _OF))[: len(values)]
        passed = (means > np.arcsin(np.sqrt(limit.bound))) & (watch.noise(values) <= _COARSE)
        passed[: PAST // 2 + _OF - 1] = False  # too few are before those five
        places = np.flatnonzero(passed)
        level, spread = _usual_of(scaled, places + 1 - _OF)
        before = np.sin(level) ** 2  # the share that the angle is of
        bound = np.arcsin(np.sqrt(np.maximum(limit.bound, 1 - limit.room * (1 - before))))
        passed[places] = means[places] > np.maximum(bound, level + _CLEAR * spread)
        enough, inside = 1, values > limit.bound
    counts = np.convolve(passed, np.ones(_OF if enough > 1 else 1))[: len(values)]
    for last in np.flatnonzero(passed & (counts >= enough)).tolist():
        first = max(last - _OF + 1, 0)
        at = first + int(np.argmax(inside[first : last + 1]))
        yield Change(at, last + 1, LIMIT, limit.above, limit=limit)


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


def _left_range(scaled: F64) -> Iterator[Change]:
    """Where ten values in a row are outside the range of all earlier ones, by more than its width.

    A past with a slope may go anywhere, so the onset test asks more of what follows it than that.
    """
    last = len(scaled) - LEAST_PAST
    if last < LEAST_PAST:
        return
    places = np.arange(LEAST_PAST, last + 1)
    most, least = (by.accumulate(scaled)[places - 1] for by in (np.maximum, np.minimum))
    lowest, highest = (_of_ten(by, scaled)[places] for by in (np.minimum, np.maximum))
    for above in (True, False):
        gaps = lowest - most if above else least - highest
        for at in places[gaps > _CLEAR_OF * (most - least)].tolist():
            middle, spread = _usual(scaled, at)
            off = abs(float(medians(scaled[at : at + LEAST_PAST])) - middle)
            score = off / spread * math.sqrt(LEAST_PAST) if spread else math.inf
            yield Change(at, at + LEAST_PAST, SHIFT, above, score)


def _of_ten(by: np.ufunc, values: F64) -> F64:
    """The least or the greatest of each value and the nine after it (``LEAST_PAST``)."""
    for distance in (1, 2, 4, 2):  # of 2, 4, 8 and 10 values
        values = by(values[:-distance], values[distance:])
    return values


def is_info(watch: Watch, change: Change) -> bool:
    """Whether a change is no fault: a level that went the other way."""
    ways = {SHIFT: watch.shift, DRIFT: watch.drift}.get(change.kind)
    return ways is not None and (UP if change.up else DOWN) not in ways
