"""What to do with a run: the step to go back to, and when it will pass a limit as it goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.questions.noise import line
from grpo_cli.commands.trend.step import WARNING, Steps
from grpo_cli.commands.trend.watched import TABLE, Limit, Watch

_RECENT, _LEAST = 40, 20
"""Steps that a slope is of, at most and at least."""
_SURE = 0.999
"""The least confidence in a slope for a forecast."""
_DOUBLED, _PARTS, _ENDS = 2.0, 5, 5
"""The least factor of what rises all along; its parts; the steps at its ends that are named."""
_FIRST = 30
"""Steps whose median is the usual level of limits that are a factor of it."""


@dataclass(frozen=True)
class Forecast(Answer):
    """When a metric will pass a limit at its present slope.

    Attributes:
        metric: its name.
        limit: the bound.
        step: where the line through the last steps (at most 40) reaches it.
        low, high: the steps between which it does with 95 %, if the slope stays as it is.
        sentence: all of it, in words.
    """

    metric: str
    limit: float
    step: int
    low: int
    high: int
    sentence: str


def last_good_step(steps: Steps, events: Sequence[Event]) -> int | None:
    """The last step before something began to go wrong that lasts; None where nothing does."""
    onsets = [
        finding.onset
        for event in events
        if event.severity == WARNING and event.end is None
        for finding in event.findings
        if finding.severity == WARNING and finding.end is None
    ]
    good = [number for number in steps.numbers if number < min(onsets, default=-math.inf)]
    return good[-1] if good else None


def forecasts(steps: Steps) -> list[Forecast]:
    """When metrics will pass limits as they go on, the earliest first.

    No forecast where noise may explain the slope, where a limit is passed already, or where
    it is farther away than the run is long.
    """
    found = (
        _forecast(row, limit, steps)
        for row in TABLE
        for limit in row.limits
        if row.name in steps.metrics
    )
    return sorted(filter(None, found), key=lambda one: one.step)


def risen(steps: Steps) -> str:
    """The engine's mismatch that rises from the first step on, in words; "" where none does.

    A change departs from what came before; what rises all along has no such past. Each fifth of
    the run is above the one before by two standard errors of neighbours' noise, and all by 2.
    """
    numbers = np.array(steps.numbers, dtype=np.float64)
    for name, values in steps.metrics.items():
        row = steps.watch(name)
        if row is None or not row.name.startswith("mismatch.") or not row.is_log:
            continue
        kept = values[~np.isnan(values)]
        if len(kept) < _LEAST or (kept <= 0.0).any():
            continue
        size = len(kept) // _PARTS
        parts = np.log(kept[-size * _PARTS :]).reshape(_PARTS, size)
        steps_up = np.diff(parts.mean(axis=1))
        times = math.exp(float(steps_up.sum()) * _PARTS / (_PARTS - 1))
        error = float(np.diff(parts, axis=1).std()) / math.sqrt(size)
        if times >= _DOUBLED and steps_up.min() > 2 * error:
            first, last = (float(np.median(part)) for part in (kept[:_ENDS], kept[-_ENDS:]))
            return (
                f"{name} has risen from the first step on, {times:.2g} times in "
                f"{numbers[-1] - numbers[0]:,.0f} steps: {first:.3g} at first, {last:.3g} now"
            )
    return ""


def _forecast(row: Watch, limit: Limit, steps: Steps) -> Forecast | None:
    kept = ~np.isnan(steps.metrics[row.name])
    values, numbers = steps.metrics[row.name][kept], np.array(steps.numbers)[kept]
    if len(values) < _LEAST:
        return None
    usual = float(np.median(values[:_FIRST]))
    bound = limit.bound * (usual if limit.times else 1.0)
    recent, sign = values[-_RECENT:], 1.0 if limit.above else -1.0
    both = np.append(recent, bound)
    if (sign * (recent - bound) >= 0.0).any() or (row.is_log and (both <= 0.0).any()):
        return None
    scaled = np.log(both) if row.is_log else row.scaled(both)
    slope = line(scaled[:-1])
    sure = slope.half_width(2 * _SURE - 1)
    if sign * slope.value <= sure:
        return None
    left, half = float(scaled[-1] - scaled[:-1].mean()), sign * slope.half_width()
    middle = (len(recent) - 1) / 2
    ahead = [
        middle + left / one - (len(recent) - 1)
        for one in (slope.value, slope.value + half, slope.value - half)
    ]
    if not 0.0 < ahead[0] <= len(values):
        return None
    pace = float(np.median(np.diff(numbers))) or 1.0
    at, low, high = (int(numbers[-1] + max(math.ceil(one), 1) * pace) for one in ahead)
    first = min(len(values), _FIRST)
    of = f" ({limit.bound:g} × {usual:.3g}, its median over the first {first} steps)"
    of = of if limit.times else ""
    sentence = (
        f"{row.name} will pass {bound:.3g}{of} at about step {at:,} ({low:,} to {high:,}) if the "
        f"last {len(recent)} steps continue"
    )
    return Forecast(row.name, bound, at, low, high, sentence)
