"""The step of a run to go back to, and what rises from its first step on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.step import WARNING, Steps

_LEAST = 20
"""Steps of a rise, at least."""
_DOUBLED, _PARTS, _ENDS = 2.0, 5, 5
"""The least factor of what rises all along; its parts; the steps at its ends that are named."""


def last_good_step(steps: Steps, events: Sequence[Event]) -> int | None:
    """The last step before something began to go wrong that lasts; None where nothing does."""
    onsets = [
        finding.onset
        for event in events
        if event.severity == WARNING and event.end is None
        for finding in event.findings
        if finding.severity == WARNING and finding.end is None
    ]
    first = min(onsets, default=-math.inf)
    good = [number for number in steps.numbers if number < first]
    return good[-1] if good else None


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
