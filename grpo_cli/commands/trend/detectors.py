"""What is wrong with series: levels, slopes, single steps, limits, impossible values.

Every detector looks back only: a change is decided by the values up to the one that shows it, and
stays when the series gets longer. A series is in one state at a time: a change lasts until its
values are back, and what shows it again meanwhile is no other change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from grpo_cli.batch import F64
from grpo_cli.commands.trend.limits import (
    BEFORE,
    EARLIEST,
    beyond,
    early_jumps,
    impossible,
    jumps,
    spikes,
    stuck,
    vanished,
)
from grpo_cli.commands.trend.onsets import (
    DRIFT,
    FUTURE,
    IMPOSSIBLE,
    LEAST,
    LEAST_FUTURE,
    PAST,
    SHIFT,
    SPIKE,
    Change,
    line_before,
    medians,
    onsets,
    steady_move,
    usual,
)
from grpo_cli.commands.trend.watched import DOWN, ROUNDING, UP, Watch

_LEAST_FACTOR = math.log(1.2)
"""The least factor of a shift or drift of what is positive."""
_INSIDE = 2.0
"""Robust deviations from the old level that a value which is as before may have."""
_OFTEN = 0.95
"""The share of the values before that it may exceed where most of these are one value."""
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
_STAYS = 0.5
"""The share of a single step's distance from what was usual that those after it have as well."""
_REACHED = 0.6
"""The share of a change, as its last third shows it, that its first third has if it is a level."""
_PERIODS = 3
"""Equal distances between single steps that are a period."""
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
    return [
        _followed(*one, each, found) if len(each) else []
        for one, each, found in zip(series, scaled, shifted, strict=True)
    ]


def _followed(watch: Watch, values: F64, scaled: F64, shifted: Sequence[Change]) -> list[Change]:
    """The changes of one series, without what repeats them while they last."""
    shifted = [one for one in shifted if _counts(watch, values, scaled, one)]
    signs = [
        *impossible(watch, values),
        *stuck(watch, values),
        *vanished(watch, values),
        *early_jumps(watch, values, scaled),
        *jumps(watch, values),
        *(one for limit in watch.limits for one in beyond(watch, limit, values, scaled)),
        *(one for one in shifted if not is_info(watch, one)),
    ]
    found = _lasting(signs, scaled)
    if not found and watch.steady is not None and scaled is not values:  # logarithms
        moved = steady_move(scaled, watch.steady)
        found = [] if moved is None else [_until_beyond(*moved, scaled)]
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
    every = (_as_level(one, fitted) for one in (*found, *single, *infos))
    return sorted(every, key=lambda one: one.at)


def _lasting(signs: Sequence[Change], scaled: F64) -> list[Change]:
    """Changes with their ends, without those that repeat the one before.

    Where a sign of the next values shows a change more clearly, it has that score.
    """
    found: list[Change] = []
    for sign in sorted(signs, key=lambda one: (one.seen, -one.score)):
        at = next((at for at, before in enumerate(found) if _repeats(before, sign)), None)
        if at is None:
            before = (
                line_before(scaled, sign.at)[::2]
                if sign.kind in (SHIFT, DRIFT) and not sign.at_once
                else None
            )
            found.append(_until_back(_since(sign, scaled, before), scaled))
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
    share = least if watch.is_log else ROUNDING
    moved = level - recent if sign.up else recent - level
    if moved <= share * abs(recent) or watch.is_small(level, up=sign.up):
        return False
    if sign.up and watch.least == watch.span[1] and (past == watch.least).any():
        return False  # all of them is nothing new
    if watch.scale == "growth" and not sign.up:
        return False  # it may only grow more slowly
    change = abs(float(medians(scaled[after])) - level_before)
    return not watch.is_log or bool(change > _LEAST_FACTOR)


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
    past, way = usual(scaled, sign.at), 1 if sign.up else -1
    level, spread = before or past
    away = (scaled[sign.at : sign.seen] - level) * way
    varies = _INSIDE * spread
    if not spread:  # most values before are one value
        rests = (scaled[max(sign.at - PAST, 0) : sign.at] - level) * way
        varies = float(np.quantile(rests, _OFTEN))
    inside = away <= max(varies, _NEARER * float(medians(away[-3:])))
    path = np.append(0, np.cumsum(np.where(inside, _OUTWEIGHS, -1.0)))
    begun = sign.at + int(np.flatnonzero(path == path.max())[-1])
    later = sign._replace(at=min(begun, max(sign.at, sign.seen - 1)))
    return later if _is_beyond(later, scaled, past[1]) else sign


def _as_level(change: Change, scaled: F64) -> Change:
    """A drift as a shift, where most of the change was made within its first values."""
    if change.kind != DRIFT or change.at_once:
        return change
    before = medians(scaled[max(change.at - RECENT, 0) : change.at])
    since = scaled[change.at : change.seen] - before
    size = max(len(since) // 3, 1)
    first, last = medians(since[:size]), medians(since[-size:])
    return change._replace(kind=SHIFT) if last and first / last >= _REACHED else change


def _until_back(change: Change, scaled: F64) -> Change:
    """The change with its end: four values in a row nearer to the old level than to the new."""
    if change.kind in (IMPOSSIBLE, SPIKE) or change.at < EARLIEST:
        return change
    before, after = scaled[max(change.at - PAST, 0) : change.at], scaled[change.at : change.seen]
    middle = (float(medians(before)) + float(medians(after))) / 2
    return _until_beyond(change, middle, scaled)


def _until_beyond(change: Change, middle: float, scaled: F64) -> Change:
    """The change with its end: four values in a row on the other side of a level."""
    later = scaled[change.seen :]
    back = later < middle if change.up else later > middle
    if len(back) < _BACK:
        return change
    ends = np.flatnonzero(sliding_window_view(back, _BACK).all(axis=1))
    return change._replace(end=change.seen + int(ends[0])) if len(ends) else change


def _single(
    places: Sequence[int], found: Sequence[Change], scaled: F64, *, up: bool
) -> list[Change]:
    """The spikes that begin no other change, and levels that begin with one and stay."""
    spikes, levels = list[Change](), list[Change]()
    for at, before in zip(places, (-2, *places), strict=False):
        if at == before + 1 or any(_within(one, at) for one in (*found, *levels)):
            continue
        level, spread = usual(scaled, at)
        away = scaled[at : at + LEAST_FUTURE] - level
        if len(away) == LEAST_FUTURE and (away / away[0] > _STAYS).all():
            score = abs(float(medians(away))) / spread if spread else math.inf
            level_since = Change(at, at + LEAST_FUTURE, SHIFT, bool(away[0] > 0.0), score)
            levels.append(_until_back(level_since, scaled))
        else:
            spikes.append(Change(at, max(at, BEFORE) + 1, SPIKE, up))
    return [*_periodic(spikes), *levels]


def _periodic(spikes: list[Change]) -> list[Change]:
    """The spikes; those from the first of several at one distance on are one, with a period."""
    gaps = np.diff([one.at for one in spikes])
    for first in range(len(spikes) - _PERIODS):
        gap = int(gaps[first])
        if gap > 1 and (gaps[first : first + _PERIODS] == gap).all():
            return [*spikes[:first], spikes[first]._replace(period=gap)]
    return spikes


def _within(change: Change, at: int) -> bool:
    last = change.seen if change.end is None else change.end + FUTURE
    return change.at - 1 <= at and (change.end is None or at < last)


def is_info(watch: Watch, change: Change) -> bool:
    """Whether a change is no fault: a level that went the other way."""
    ways = {SHIFT: watch.shift, DRIFT: watch.drift}.get(change.kind)
    return ways is not None and (UP if change.up else DOWN) not in ways
