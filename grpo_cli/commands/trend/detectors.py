"""What is wrong with series: levels, slopes, single steps, limits, impossible values.

Every detector looks back only: a change is decided by the values up to the one that shows it, and
stays when the series gets longer. A series is in one state at a time: a change lasts until its
values are back, and what shows it again meanwhile is no other change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from grpo_cli.batch import F64
from grpo_cli.commands.trend.limits import (
    BEFORE,
    beyond,
    impossible,
    jumps,
    left_range,
    spikes,
    stuck,
    vanished,
)
from grpo_cli.commands.trend.onsets import (
    DRIFT,
    FARTHEST,
    FUTURE,
    IMPOSSIBLE,
    LEAST,
    LEAST_FUTURE,
    LEAST_PAST,
    LIMIT,
    PAST,
    SHIFT,
    SPIKE,
    TREND,
    Change,
    goes_on,
    line_before,
    medians,
    onsets,
    shapes,
    steady_move,
    usual,
)
from grpo_cli.commands.trend.watched import DOWN, UP, Steady, Watch

_LEAST_FACTOR = math.log(1.2)
"""The least factor of a shift or drift of what is positive."""
_UNCORRELATED = 0.5
"""The least fall of a correlation."""
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
_FALLEN = 0.7
"""The share of its level before to which what accumulates has to fall."""
_QUARTER = 0.25
"""That of a constant."""
_STAYS = 0.5
"""The share of a single step's distance from what was usual that those after it have as well."""
_PERIODS = 3
"""Equal distances between single steps that are a period."""
_ABRUPT = 0.3
"""The share of a steady move that a change which continues it may make at once."""
_REACHED = 0.6
"""The share of a change, as its last third shows it, that its first third has if it is a level."""
_ROUNDING = 1e-9
_BACK = 4
"""Values in a row that are back to the old level."""


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
        shares = np.array([series[at][0].shares for at in places])
        for at, found in zip(places, onsets(rows, least, shares), strict=True):
            shifted[at] = found
    every = [
        _followed(*one, each, found) if len(each) else []
        for one, each, found in zip(series, scaled, shifted, strict=True)
    ]
    families = [(watch.name.partition(".")[0], len(values)) for watch, values in series]
    trends = [
        (family, each, one)
        for family, each, found in zip(families, scaled, every, strict=True)
        for one in found
        if one.kind == TREND and one.end is None
    ]
    for found, own in zip(every, families, strict=True):
        of_family = [(trend, values) for family, values, trend in trends if family == own]
        for place, one in enumerate(found):
            if any(_continues(trend, one, values) for trend, values in of_family):
                passed = one.at if one.limit else None
                found[place] = one._replace(at=0, kind=TREND, passed=passed)
    return every


def _continues(trend: Change, change: Change, values: F64) -> bool:
    """Whether a change is no onset, since a metric of its family went one way all along.

    Args:
        trend: how that metric went.
        change: of it or another one.
        values: those of that metric, as detectors compare them.
    """
    at, size = change.at, LEAST_FUTURE
    known = change.kind in (SHIFT, DRIFT, LIMIT) and not change.info and change.end is None
    if not known or at + size > trend.spans:
        return False
    before, after = medians(values[: at + 1][-size:]), medians(values[at : at + size])
    whole = medians(values[: trend.spans][-size:]) - medians(values[:size])
    return bool(abs(after - before) <= _ABRUPT * abs(whole))


def _followed(watch: Watch, values: F64, scaled: F64, shifted: Sequence[Change]) -> list[Change]:
    """The changes of one series, without what repeats them while they last."""
    shifted = [*shifted, *(left_range(scaled) if watch.shift else ())]
    shifted = [one for one in shifted if _counts(watch, values, scaled, one)]
    signs = [
        *impossible(watch, values),
        *stuck(watch, values),
        *vanished(watch, values),
        *jumps(watch, values),
        *(one for limit in watch.limits for one in beyond(watch, limit, values, scaled)),
        *(one for one in shifted if not is_info(watch, one)),
    ]
    found = _lasting(signs, scaled)
    if watch.steady is not None and scaled is not values:  # logarithms
        found = _with_trend(watch.steady, scaled, found)
    other = _lasting([one for one in shifted if is_info(watch, one)], scaled)
    infos = (
        one._replace(info=True)
        for one in other
        if not any(
            _within(each, one.at) or (each.up == one.up and one.at < each.at < one.seen)
            for each in found
        )
    )
    places = spikes(watch, values, scaled) if watch.spikes else []
    single = _single(places, found, scaled, up=watch.scale != "below 1")
    fitted = values if watch.scale == "share" else scaled  # of angles a small share is a large part
    every = (_dated(one, fitted) for one in (*found, *single, *infos))
    return sorted(every, key=lambda one: one.at)


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
        if sign.at_once and abs(sign.at - known.at) <= LEAST_FUTURE and sign.up == known.up:
            found[at] = known = known._replace(at=sign.at, kind=SHIFT, at_once=True)
        both = {sign.kind, known.kind} <= {SHIFT, DRIFT} and sign.up == known.up
        if both and sign.score > known.score and sign.seen <= known.seen + LEAST_FUTURE:
            found[at] = known._replace(score=sign.score, kind=sign.kind)
    return found


def _repeats(before: Change, sign: Change) -> bool:
    """Whether a sign is of the change before it, or of its end."""
    if IMPOSSIBLE in (before.kind, sign.kind):
        return sign.kind == before.kind
    if sign.at_once and sign.at > before.seen:
        return False
    return before.end is None or sign.at < before.end + FUTURE


def _counts(watch: Watch, values: F64, scaled: F64, sign: Change) -> bool:
    """Whether a shift or drift is large enough to matter, and no mere end of a trend.

    What came since it began is beyond the last values before by what these usually vary.
    """
    level_before, spread = usual(scaled, sign.at)
    if not _is_beyond(_since(sign, scaled), scaled, spread):
        return False
    after = slice(max(sign.at, sign.seen - LEAST_FUTURE), sign.seen)
    level = float(medians(values[after]))
    recent = float(medians(values[max(sign.at - RECENT, 0) : sign.at]))
    past = values[max(sign.at - PAST, 0) : sign.at]
    rise = watch.rise * max(1.0, (sign.seen - sign.at) / RECENT)
    least = rise if sign.up and sign.score < _SURE else _LEAST_MOVE
    share = _QUARTER if (past == past[0]).all() else least if watch.is_log else 0.0
    moved = level - recent if sign.up else recent - level
    if moved <= share * abs(recent) or watch.is_small(level, up=sign.up):
        return False
    if sign.up and watch.least == watch.span[1] and (past == watch.least).any():
        return False  # all of them is nothing new
    if watch.scale == "growth" and not sign.up and not _has_fallen(values, sign):
        return False
    if watch.scale == "correlation" and not sign.up and moved < _UNCORRELATED:
        return False
    change = abs(float(medians(scaled[after])) - level_before)
    return not watch.is_log or bool(change > _LEAST_FACTOR)


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
    if sign.kind not in (SHIFT, DRIFT) or sign.at_once:
        return sign
    past = usual(scaled, sign.at)
    level, spread = before or past
    away = (scaled[sign.at : sign.seen] - level) * (1 if sign.up else -1)
    inside = away <= max(_INSIDE * spread, _NEARER * float(medians(away[-3:])))
    path = np.append(0, np.cumsum(np.where(inside, _OUTWEIGHS, -1.0)))
    begun = sign.at + int(np.flatnonzero(path == path.max())[-1])
    later = sign._replace(at=min(begun, max(sign.at, sign.seen - 2)))
    return later if _is_beyond(later, scaled, past[1]) else sign


def _begun(sign: Change, scaled: F64) -> Change:
    """The sign, at the first of the values before it that already left what came before them."""
    first, values = sign.at, scaled if sign.up else -scaled
    while sign.kind in (SHIFT, DRIFT) and first > LEAST_PAST and not sign.at_once:
        recent = values[max(first - 1 - RECENT, 0) : first - 1]
        level, _, spread = line_before(values, first - 1)
        nearer = level + _PARTLY * (values[first] - level)
        if values[first - 1] <= max(recent.max() + _LEFT * spread, nearer):
            break
        first -= 1
    return sign._replace(at=first)


_ALLOWED = 4.2
"""By how many of its variances a fit may be worse than the best: the 95 % point of F(1, 30)."""


def _dated(change: Change, scaled: F64) -> Change:
    """The change, with the first value at which it may have begun; a step where it fits best.

    From each place on a step, a slope and a curve between them are fitted by least squares to the
    values that show the change. It may have begun wherever one of them fits nearly as well as the
    best one does.
    """
    if change.kind not in (SHIFT, DRIFT) or change.at_once or change.at <= LEAST_PAST:
        return change
    start = max(change.at - PAST, 0)
    places = np.arange(max(change.at - FARTHEST, LEAST_PAST), change.seen - 1)
    count = change.seen - start
    known = [np.ones(count)]
    if line_before(scaled, max(change.at - LEAST_FUTURE, LEAST_PAST))[1]:
        known.append(np.arange(count, dtype=np.float64))
    base, _ = np.linalg.qr(np.stack(known, axis=1))
    values = scaled[start : change.seen]
    values = (values - base @ (values @ base)) * (1 if change.up else -1)
    fitted = shapes(places - start, count, base)
    explained = (fitted @ values).clip(0.0) ** 2 / np.maximum((fitted**2).sum(axis=2), _ROUNDING)
    shape, best = np.unravel_index(explained.argmax(), explained.shape)
    if shape == 0 and places[best] > change.at:
        change = change._replace(at=int(places[best]))
    if _is_reached(change, scaled):
        change = change._replace(kind=SHIFT)
    left = np.maximum(values @ values - explained.max(axis=0), 0.0)
    enough = left <= left.min() * (1 + _ALLOWED / (len(values) - 3)) + _ROUNDING * (values @ values)
    first = int(places[enough.argmax()])
    return change._replace(earliest=first) if first < change.at else change


def _is_reached(change: Change, scaled: F64) -> bool:
    """Whether most of a change was made within its first values, so that it is no drift."""
    before = medians(scaled[max(change.at - RECENT, 0) : change.at])
    since = scaled[change.at : change.seen] - before
    size = max(len(since) // 3, 1)
    first, last = medians(since[:size]), medians(since[-size:])
    return bool(first / last >= _REACHED) if last else False


def _until_back(change: Change, scaled: F64) -> Change:
    """The change with its end: four values in a row nearer to the old level than to the new."""
    at = change.at if change.passed is None else change.passed
    if change.kind in (IMPOSSIBLE, SPIKE) or at < LEAST_PAST:
        return change
    middle = (usual(scaled, at)[0] + float(medians(scaled[at : change.seen]))) / 2
    return _until_beyond(change, middle, scaled)


def _until_beyond(change: Change, middle: float, scaled: F64) -> Change:
    """The change with its end: four values in a row on the other side of a level."""
    later = scaled[change.seen :]
    back = later < middle if change.up else later > middle
    if len(back) < _BACK:
        return change
    ends = np.flatnonzero(sliding_window_view(back, _BACK).all(axis=1))
    return change._replace(end=change.seen + int(ends[0])) if len(ends) else change


def _with_trend(steady: Steady, scaled: F64, found: list[Change]) -> list[Change]:
    """The changes, with what went one way all along in the place of those that continue it.

    Where another change of that way shows it earlier, there is no such trend.
    """
    moved = steady_move(scaled, steady)
    if moved is None:
        return found
    trend = _until_beyond(*moved, scaled)
    others = list[Change]()
    for one in found:
        onward = one.up == trend.up and goes_on(scaled, one.at, up=trend.up)
        if not (onward and _continues(trend, one, scaled)):
            others.append(one)
    known = (one for one in others if one.kind in (SHIFT, DRIFT) and one.up == trend.up)
    if any(one.seen <= trend.seen and _within(one, trend.seen) for one in known):
        return found
    return [*others, trend]


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
        level, spread = usual(scaled, at)
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
    return Change(at, max(at, BEFORE) + 1, SPIKE, up)


def _within(change: Change, at: int) -> bool:
    last = change.seen if change.end is None else change.end + FUTURE
    return change.at - 1 <= at and (change.end is None or at < last)


def is_info(watch: Watch, change: Change) -> bool:
    """Whether a change is no fault: a level that went the other way."""
    ways = {SHIFT: watch.shift, DRIFT: watch.drift}.get(change.kind)
    return ways is not None and (UP if change.up else DOWN) not in ways
