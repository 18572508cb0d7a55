"""What to do with a run: the step to go back to, and when it will pass a limit as it goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.questions.noise import line
from grpo_cli.commands.trend.step import WARNING, Steps
from grpo_cli.commands.trend.watched import TABLE, Limit, Watch

_RECENT, _LEAST = 40, 20
"""Steps that a slope is of, at most and at least."""
_SURE = 0.999
"""The least confidence in a slope for a forecast."""
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
    found = [
        one
        for row in TABLE
        for limit in row.limits
        if row.name in steps.metrics
        for one in _forecast(row, limit, steps)
    ]
    return sorted(found, key=lambda one: one.step)


def _forecast(row: Watch, limit: Limit, steps: Steps) -> Iterator[Forecast]:
    kept = ~np.isnan(steps.metrics[row.name])
    values, numbers = steps.metrics[row.name][kept], np.array(steps.numbers)[kept]
    if len(values) < _LEAST:
        return
    bound = limit.bound * (float(np.median(values[:_FIRST])) if limit.times else 1.0)
    recent = values[-_RECENT:]
    sign = 1.0 if limit.above else -1.0
    if (sign * (recent - bound) >= 0.0).any():
        return
    level, slope, width = _line(row, recent, bound)
    if width is None or sign * slope <= width[1]:
        return
    middle = (len(recent) - 1) / 2
    ahead = [
        middle + level / one - (len(recent) - 1)
        for one in (slope, slope + sign * width[0], slope - sign * width[0])
    ]
    if not 0.0 < ahead[0] <= len(values):
        return
    pace = float(np.median(np.diff(numbers))) or 1.0
    at, low, high = (int(numbers[-1] + max(math.ceil(one), 1) * pace) for one in ahead)
    sentence = (
        f"{row.name} will pass {bound:.3g} at about step {at:,} ({low:,} to {high:,}) if the "
        f"last {len(recent)} steps continue"
    )
    yield Forecast(row.name, bound, at, low, high, sentence)


def _line(row: Watch, values: F64, bound: float) -> tuple[float, float, tuple[float, float] | None]:
    """How far a bound is from the middle of a line, its slope, and how sure that is.

    On the metric's scale; both widths of the slope's interval: 95 %, and that of ``_SURE``.
    """
    both = np.append(values, bound)
    if row.is_log:
        if (both <= 0.0).any():
            return 0.0, 0.0, None
        scaled = np.log(both)
    else:
        scaled = row.scaled(both)
    slope = line(scaled[:-1])
    widths = slope.half_width(), slope.half_width(2 * _SURE - 1)
    return float(scaled[-1] - scaled[:-1].mean()), slope.value, widths
