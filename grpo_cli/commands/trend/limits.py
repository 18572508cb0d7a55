"""Single steps that are far off, limits, values far outside of all before, impossible values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from grpo_cli.batch import F64
from grpo_cli.commands.trend.onsets import (
    FUTURE,
    IMPOSSIBLE,
    LEAST_FUTURE,
    LEAST_PAST,
    LIMIT,
    PAST,
    SHIFT,
    STUCK,
    Change,
    levels,
    medians,
    middles,
    usual_of,
)
from grpo_cli.commands.trend.watched import DOWN, UP, Limit, Watch

_SPIKES = ((15.0, 1.0), (10.0, 10.0))
"""Robust standard deviations of a single step from those before it, and its factor of them."""
_SHARES = ((5.8, 30.0),)
"""The same of the distance of an effective sample size from 1, whose tails are light: in 47 healthy
runs none is both, and after a step of 20 times the learning rate it is in 27 of 27."""
BEFORE = 20
"""The other steps that a single one is far from: those before it, of the first 21 all others."""
_OUTSIDE = 10.0
"""The least factor, of what was largest so far, of a step of a series with both signs."""
_OF, _MOST = 5, 3
_CLEAR = 1.75
"""Deviations of a mean of five steps from what was usual."""
_COARSE = 0.25
"""The noise of a share, as an angle, beyond which it is of fewer than four."""
_BEFORE, _SINCE, _MOST_AT_ONCE, _JUMP = 8, 6, 0.55, 3.0
"""The values before and since a jump, the share of it between all of them, and its least
size, in robust deviations of the moves from value to value, of what may be negative. In
200 healthy runs and 200 logs there are none, nor in 70 rewards that rise by a curve."""
_ERROR = math.sqrt((1 / _BEFORE + 1 / _SINCE) / 2)
"""The standard error of a jump, in such deviations: a move has the noise of two values."""
EARLIEST = 3
"""The steps before the first place at which a jump is looked for."""
_FARTHER = 3.0
"""The least gap of an early jump, in the largest moves from value to value on both its sides. Of
2,900 series of 98 healthy runs and of their parts, the largest that is looked at is 2.3."""
_BEGINS = 2
"""The first values of what grows from 0, whose moves are the largest of all."""
_LEAST_RISE = 0.6
"""The least size of a jump, as a share of the smaller level."""
_LEAST_REVERSAL = math.atanh(0.5)
"""The least size of a jump of a correlation: from a half to 0. Of a share's angle: 0 to 0.27."""
_CHANCE, _OFTEN = 1e-5, 0.2
"""The chance of as many zeros in a row, as often as there were some before, that is none; and the
share of these from which on more of them are nothing new."""


def spikes(watch: Watch, raw: F64, scaled: F64) -> list[int]:
    """The places of values that are far above all that is usual."""
    linear, falls = watch.scale == "linear", watch.scale == "below 1"
    values = np.abs(scaled) if linear else scaled
    if len(values) <= BEFORE:
        return []
    most = np.maximum.accumulate(np.append(0.0, values))[:-1]
    others = np.array([np.delete(values[: BEFORE + 1], at) for at in range(BEFORE)])
    most[:BEFORE] = others.max(axis=1)
    likely = np.ones(len(values), dtype=np.bool_)
    if linear:
        likely = values > _OUTSIDE * most
    elif len(values) > PAST:  # a window's median is within its range
        windows = sliding_window_view(values[:-1], PAST)
        ends = windows.max(axis=1) if falls else windows.min(axis=1)
        far = np.abs(values[PAST:] - ends) > math.log(watch.spikes)
        away = values[PAST:][far] - medians(windows[far])
        likely[PAST:] = far
        likely[PAST:][far] = (-away if falls else away) > math.log(watch.spikes)
    likely[0] = False  # nothing is before it
    places = np.flatnonzero(likely)
    level, spread = usual_of(values, places)
    early = places < BEFORE
    level[early], spread[early] = (one[places[early]] for one in levels(others))
    away = level - values[places] if falls else values[places] - level
    if linear:
        far = away > _SPIKES[0][0] * spread
    else:
        rules = _SHARES if falls else _SPIKES
        far = np.any([(away > m * spread) & (away > math.log(f)) for m, f in rules], axis=0)
        signed = -values if falls else values
        sides = np.pad(signed, 1, mode="edge")
        lasting = np.minimum(signed, np.maximum(sides[:-2], sides[2:]))  # not a spike of one step
        before = np.maximum.accumulate(lasting)  # the steps after a shift are no measure
        risen = signed[places] - before[places - 1]
        far &= np.where(early, np.minimum(away, risen), away) > math.log(watch.spikes)
    return [at for at in places[far].tolist() if not watch.is_small(abs(raw[at]), up=True)]


# ---- limits and what cannot be ------------------------------------------------------------------


def beyond(watch: Watch, limit: Limit, values: F64, scaled: F64) -> Iterator[Change]:
    """Where three of five steps pass a published limit, or the mean of five one of practice.

    Such a mean of shares has to come from a level that does not pass it, and each share from
    enough groups.
    """
    if limit.room is None:
        passed = values > limit.bound if limit.above else values < limit.bound
        if limit.later and passed[:1].any():
            return
        enough, least = min(_MOST, len(values) // 2 + 1), None
    else:
        means = np.convolve(scaled, np.full(_OF, 1.0 / _OF))[: len(values)]
        passed = (means > np.arcsin(np.sqrt(limit.bound))) & (watch.noise(values) <= _COARSE)
        passed[: PAST // 2 + _OF - 1] = False  # not enough steps before those five
        places = np.flatnonzero(passed)
        level, spread = usual_of(scaled, places + 1 - _OF)
        before = np.sin(level) ** 2  # the share that the angle is of
        bound = np.arcsin(np.sqrt(np.maximum(limit.bound, 1 - limit.room * (1 - before))))
        passed[places] = means[places] > np.maximum(bound, level + _CLEAR * spread)
        enough, least = 1, np.zeros(len(values))
        least[places] = np.maximum(np.arcsin(np.sqrt(limit.bound)), level + _CLEAR * spread)
    counts = np.convolve(passed, np.ones(_OF if enough > 1 else 1))[: len(values)]
    for last in np.flatnonzero(passed & (counts >= enough)).tolist():
        first = max(last - _OF + 1, 0)
        inside = passed if least is None else scaled > least[last]
        at = first + int(np.argmax(inside[first : last + 1]))
        yield Change(at, last + 1, LIMIT, limit.above, limit=limit)


_NOTHING = {"log": 0.0, "growth": 0.0, "below 1": 1.0}
"""The value whose logarithm, or that of its distance from 1, there is not."""
_ROUNDED = 1e-9
"""What rounding adds to a share of 1."""


def impossible(watch: Watch, values: F64) -> Iterator[Change]:
    """The first value that cannot be."""
    low, high = watch.span
    wrong = (values < low - _ROUNDED) | (values > high + _ROUNDED)
    for at in np.flatnonzero(wrong).tolist()[:1]:
        yield Change(at, at + 1, IMPOSSIBLE, up=bool(values[at] > high))


def stuck(watch: Watch, values: F64) -> Iterator[Change]:
    """Where a series has the value at which nothing is learnt from its first step on."""
    if watch.stuck is None:
        return
    others = np.flatnonzero(values != watch.stuck)
    count = int(others[0]) if len(others) else len(values)
    if count >= _OF:
        yield Change(0, _OF, STUCK, up=watch.stuck != 0.0, end=count if len(others) else None)


def vanished(
    watch: Watch,
    values: F64,
    among: int = 1,
    chance: Callable[[int], float] | None = None,
) -> Iterator[Change]:
    """Where numbers that rarely were exactly 0 (1 for "below 1") become so: no noise does that.

    The onset test takes the growth before it for noise.

    Args:
        watch, values: a series.
        among: of how many series this is one.
        chance: a place → at least how often values there are 0 by chance.
    """
    nothing = _NOTHING.get(watch.scale)
    if nothing is None and watch.gone is None:
        return
    gone = values == nothing if watch.gone is None else values <= watch.gone
    edges = np.flatnonzero(np.diff(gone, prepend=False, append=False)).reshape(-1, 2)
    long = (edges[:, 0] >= watch.gone_after) & (edges[:, 1] - edges[:, 0] >= LEAST_FUTURE)
    for at, end in edges[long].tolist():
        before = gone[max(at - PAST, 0) : at]
        sure = among == 1 and len(before) >= LEAST_PAST and not before.any()
        share = 0.0 if sure else (before.sum() + 1) / (len(before) + 2)
        if share > _OFTEN or (watch.gone is None and before[-LEAST_PAST:].any()):
            continue
        share = share if chance is None else max(share, chance(at))
        if share == 1.0:
            continue
        count = math.ceil(math.log(_CHANCE / among) / math.log(share)) if share else LEAST_FUTURE
        if end - at >= count:
            at_once = watch.gone is not None
            yield Change(at, at + count, SHIFT, up=nothing == 1.0, at_once=at_once)
            return


def jumps(watch: Watch, values: F64) -> Iterator[Change]:
    """Where six values are beyond the eight before, and most of the way was made at once.

    What learns, or moves away, does so over several steps.
    """
    last = len(values) - _SINCE
    if last < LEAST_PAST or not watch.jumps:
        return
    if watch.scale == "share":  # of angles a small share is a large part
        watch = watch._replace(scale="linear")
    scaled, noise = watch.scaled(values), watch.noise(values)
    if watch.is_log and scaled is values:
        return
    before, after = (np.sort(sliding_window_view(scaled, n)) for n in (_BEFORE, _SINCE))
    before, after = before[LEAST_PAST - _BEFORE : last - _BEFORE + 1], after[LEAST_PAST:]
    moves = middles(after) - middles(before)
    risen, fallen = after[:, 0] - before[:, -1], before[:, 0] - after[:, -1]
    sizes = np.abs(moves)
    likely = np.where(moves > 0.0, risen, fallen) > _MOST_AT_ONCE * sizes
    for row in np.flatnonzero(likely).tolist():
        at, up = row + LEAST_PAST, bool(moves[row] > 0.0)
        spread = float(levels(np.diff(scaled[max(at - PAST, 0) : at]))[1])
        own = noise[at - 1] if watch.least else noise[at]  # the new level makes no grain
        error, size = max(spread, float(own)), float(sizes[row])
        least = max(
            (watch.jump[1] if watch.is_log else _JUMP) * error, _least_jump(watch, scaled, at)
        )
        if watch.is_small(float(medians(values[at : at + _SINCE])), up=up):
            continue
        if (UP if up else DOWN) in watch.jumps and size > least:
            score = size / (_ERROR * error) if error else math.inf
            yield Change(at, at + _SINCE, SHIFT, up, score, at_once=True)


def early_jumps(watch: Watch, values: F64, scaled: F64) -> Iterator[Change]:
    """Where, of the first ten values, those since one are far beyond all before it.

    So few values show no spread, and what learns moves fastest in the first steps: the gap is
    compared with the largest move between two neighbours on either side of it.
    """
    ways = watch.jumps + (watch.shift if watch.scale != "linear" else "")
    nothing, noise = _NOTHING.get(watch.scale), watch.noise(values)
    for at in range(EARLIEST, min(LEAST_PAST - 1, len(values) - _SINCE) + 1):
        before, after = scaled[:at], scaled[at : at + _SINCE]
        gap, up = max((after.min() - before.max(), True), (before.min() - after.max(), False))
        if gap <= 0.0 or (UP if up else DOWN) not in ways:
            continue
        if nothing is not None and (scaled is values or nothing in values[at - 2 : at]):
            continue  # it had not begun
        begun = _BEGINS if watch.scale == "growth" and at >= _BEGINS + EARLIEST else 0
        moves = (np.abs(np.diff(side)).max() for side in (before[begun:], after))
        error = max(*moves, noise[at + _SINCE - 1])
        least = max(_FARTHER * error, _least_jump(watch, scaled, at))
        if gap > least and not watch.is_small(float(medians(values[at : at + _SINCE])), up=up):
            score = gap / (_ERROR * error) if error else math.inf
            yield Change(at, at + _SINCE, SHIFT, up, float(score), at_once=True)


def _least_jump(watch: Watch, scaled: F64, at: int) -> float:
    """The least size of a jump at a place that matters."""
    if watch.scale in _NOTHING:
        return watch.jump[0]
    if watch.scale == "share":
        return _LEAST_REVERSAL
    sides = scaled[max(at - FUTURE, 0) : at], scaled[at : at + FUTURE]
    before, after = (abs(float(medians(side))) for side in sides)
    if watch.scale == "correlation":  # to the other side of 0
        return max(before, _LEAST_REVERSAL)
    return _LEAST_RISE * min(before, after)
