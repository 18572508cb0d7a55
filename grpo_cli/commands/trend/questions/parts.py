"""The parts of a run: which of them a change comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.events import Event, events
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.onsets import FUTURE, PAST
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Flags, Steps
from grpo_cli.commands.trend.sums import PROMPT
from grpo_cli.commands.trend.view import usual
from grpo_cli.commands.trend.watched import ROUNDING
from grpo_cli.engine import Reader
from grpo_cli.errors import UsageError
from grpo_cli.records.choose.where import read_path
from grpo_cli.terminal.numbers import and_more, shown
from grpo_cli.variants.plan import Plan

Name = str | int | float

_MOVED = 4.0
"""Standard errors from which a part has moved."""
_SMALL = 0.2
"""Of the largest move of a part: one that is smaller carries nothing."""
_WHOLE = 1.2
"""Of a change: beyond it other parts moved against it, and a share says little."""
_LARGEST = 2.0
"""The largest share of a part with which shares are given: beyond it the moves of parts cancel."""
_LEAST = 5
"""Steps before a change by which a part's noise is known."""
_ADDS_UP = 0.25
"""Of a change: by how much the parts may miss it for their shares to be given."""


@dataclass(frozen=True)
class Part(Answer):
    """A part of a run, with the medians of its metrics over its steps."""

    part: Name
    steps: int
    responses: int
    metrics: Mapping[str, float | None]

    def row(self) -> dict[str, Any]:
        """What other formats than JSON have of it."""
        return {name: value for name, value in self.fields().items() if name != "metrics"} | dict(
            self.metrics
        )


@dataclass(frozen=True)
class PartChange(Answer):
    """What a part did where the run changed.

    Attributes:
        metric: that changed.
        step: from which on.
        part: the part.
        before, after: its means; None where it had no steps.
        size: by how many standard errors it moved; None where it does not vary.
        weight_before, weight_after: its share of the run's responses.
        share: of the run's change, by its own move and by its weight; None where the metric is no
            mean over responses or tokens, or where the moves of parts cancel, so that one of them
            is more than twice the run's change.
    """

    metric: str
    step: int
    part: Name
    before: float | None
    after: float | None
    size: float | None
    weight_before: float
    weight_after: float
    share: float | None


@dataclass(frozen=True)
class PartsAnswer(Answer):
    """The answer of ``trend --by``.

    Attributes:
        field: whose values name the parts.
        verdicts: a sentence for each change.
        changes: what each part did where the run changed, those that carry most first.
        parts: all parts.
    """

    field: str
    verdicts: Sequence[str]
    changes: Sequence[PartChange]
    parts: Sequence[Part]


class _Window(NamedTuple):
    """A change of a metric: the steps before it, and those from it on."""

    metric: str
    before: Sequence[int]
    after: Sequence[int]


def windows_of(steps: Steps, events: Iterable[Event]) -> list[_Window]:
    """The steps around what was found, in the order of the events; each metric and step once."""
    found = [one for event in events for one in event.findings]
    windows = []
    changed = ((one.metric.partition(f"/{PROMPT}")[0], one.onset) for one in found)  # it is a part
    for metric, step in dict.fromkeys(changed):
        at = steps.numbers.index(step)
        before, after = steps.numbers[max(0, at - PAST) : at], steps.numbers[at : at + FUTURE]
        if metric in steps.metrics and before:
            windows.append(_Window(metric, before, after))
    return windows


class PartSteps:
    """The steps of each part of a run, read in one pass: a row for each.

    Attributes:
        parts: their names, in the order of the input.
        of_part, of_step: [n] of each row, its part's place in ``parts`` and its step.
    """

    def __init__(self, reader: Reader, plan: Plan, source: StepSource, by: str) -> None:
        path = read_path(by, "--by")
        reader = reader.only({})
        reader.reading = replace(reader.reading, batch=(path,))
        run = Run(reader, plan, replace(source, by=path))
        self._rows = run.read()
        known = [run.parts[number] for number in self._rows.numbers]
        names = dict.fromkeys(part for part, _ in run.parts.values())
        self.parts = [*names]
        places = {name: at for at, name in enumerate(names)}
        self.of_part = np.array([places[part] for part, _ in known], dtype=np.int64)
        self.of_step = np.array([step for _, step in known], dtype=np.int64)

    def values(self, metric: str) -> F64:
        """[n] a metric of each row."""
        return self._rows.metrics[metric]

    def summary(self, names: Sequence[str]) -> list[Part]:
        """The parts with the medians of some metrics."""
        found = []
        for at, part in enumerate(self.parts):
            rows = np.flatnonzero(self.of_part == at)
            values = {name: self.values(name)[rows] for name in names}
            medians = {
                name: None if np.isnan(one).all() else float(np.nanmedian(one))
                for name, one in values.items()
            }
            responses = int(self._rows.counted("samples")[rows].sum())
            found.append(Part(part, len(rows), responses, medians))
        return found

    # ---- which part carries a change ----------------------------------------------------------

    def changes(self, window: _Window, whole: Steps) -> list[PartChange]:
        """What each part did in a window, those that carry most of the run's change first."""
        values, spans = self.values(window.metric), (window.before, window.after)
        chosen = [np.isin(self.of_step, span) & ~np.isnan(values) for span in spans]
        series = whole.metrics[window.metric]
        ends = (series[np.isin(whole.numbers, span)] for span in spans)
        first, last = (math.nan if np.isnan(one).all() else float(np.nanmean(one)) for one in ends)
        change = last - first
        moves = min(
            (self._moves(values, self._rows.counted(u), chosen) for u in ("samples", "tokens")),
            key=lambda one: abs(one.carried.sum() - change),
        )
        fits = abs(moves.carried.sum() - change) <= _ADDS_UP * abs(change)
        fits &= np.abs(moves.carried).max(initial=0) <= _LARGEST * abs(change)
        rows = []
        for at in np.flatnonzero(moves.weights.any(axis=0)).tolist():
            before, after = (None if math.isnan(one) else float(one) for one in moves.means[:, at])
            size = self._size(values, [one & (self.of_part == at) for one in chosen])
            share = float(moves.carried[at] / change) if fits and change else None
            about = window.metric, window.after[0], self.parts[at]
            low, high = map(float, moves.weights[:, at])
            rows.append(PartChange(*about, before, after, size, low, high, share))
        return sorted(rows, key=lambda one: (-abs(one.share or 0.0), -abs(one.size or 0.0)))

    def _moves(self, values: F64, weights: F64, chosen: Sequence[Any]) -> _Moves:
        """The means of parts before and after, and what each adds to the change of their mean."""
        sums = [
            [np.bincount(self.of_part[rows], one[rows], len(self.parts)) for rows in chosen]
            for one in (weights, weights * values)
        ]
        weight, total = (np.array(one) for one in sums)
        with np.errstate(invalid="ignore", divide="ignore"):
            means, shares = total / weight, weight / weight.sum(axis=1, keepdims=True)
        filled = np.where(np.isnan(means), means[::-1], means)  # a part that came or went
        middle = np.nansum(shares * filled, axis=1).mean()
        within = shares.mean(axis=0) * (filled[1] - filled[0])
        mixed = (shares[1] - shares[0]) * (filled.mean(axis=0) - middle)
        return _Moves(means, shares, np.nan_to_num(within + mixed))

    def _size(self, values: F64, chosen: Sequence[Any]) -> float | None:
        before, after = (values[rows] for rows in chosen)
        if len(before) < _LEAST or not len(after):
            return None
        error = float(before.std(ddof=1)) * math.sqrt(1 / len(before) + 1 / len(after))
        change = float(after.mean() - before.mean())
        if error > ROUNDING * abs(float(before.mean())):
            return change / error
        return math.copysign(math.inf, change) if abs(change) > error else None


class _Moves(NamedTuple):
    """[2, P] means and weights of parts before and after, and [P] what each adds to the change."""

    means: F64
    weights: F64
    carried: F64


def answer_of_parts(run: Run | Steps, flags: Flags, by: str) -> PartsAnswer:
    """Which parts of a run, by a field, carry its changes (``--by``).

    Raises:
        UsageError: for a log.
    """
    if isinstance(run, Steps):
        raise UsageError("--by needs records; a log can only answer --at and --against")
    steps = run.read()
    around = windows_of(steps, events(findings(steps, flags), steps))
    parts = PartSteps(run.reader, run.plan, run.step_source, by)
    return answer_by(by, parts, steps, around, usual(steps))


def answer_by(
    field: str, parts: PartSteps, whole: Steps, around: Sequence[_Window], names: Sequence[str]
) -> PartsAnswer:
    """Which parts of a run carry its changes.

    Args:
        field: whose values name the parts.
        parts: the steps of each.
        whole: those of the run.
        around: the changes that are explained.
        names: the metrics of which each part has its median.
    """
    once = len(whole) > 1 and len(parts.of_part) == len(parts.parts)
    changes = [] if once else [parts.changes(one, whole) for one in around]
    verdicts = [_verdict(field, rows, len(parts.parts)) for rows in changes if rows]
    if once:
        verdicts = [f"each {field} occurs in one step, so {field}s cannot be compared"]
    every = [row for rows in changes for row in rows]
    return PartsAnswer(field, verdicts, every, parts.summary(names))


def _moved(rows: Sequence[PartChange]) -> list[PartChange]:
    """The parts that changed."""
    largest = max((abs(one.size or 0.0) for one in rows), default=0.0)
    return [one for one in rows if abs(one.size or 0.0) >= max(_MOVED, _SMALL * largest)]


def _verdict(field: str, rows: Sequence[PartChange], count: int) -> str:
    """Which parts carry a change, in a sentence."""
    first, moved = rows[0], _moved(rows)
    about = f"{first.metric} from step {first.step} on"
    if not moved:
        return f"{about}: no single {field} changed"
    rose, fell = ([one for one in moved if (one.size or 0.0) * sign > 0] for sign in (1, -1))
    if len(moved) == count and rose and fell:
        return f"{about}: {field}={_names(rose)} rose, {field}={_names(fell)} fell"
    if len(moved) == count:
        every = "both" if count == 2 else f"all {count:,}"
        return f"{about}: {every} changed, so {field} does not explain it"
    shares = [one.share for one in moved if one.share is not None]
    others = 2 * len(moved) > count and len(rows) == count  # which are the news then
    named = [one for one in rows if one not in moved] if others else moved
    which = f"every {field} except {_names(named)}" if others else f"only {field}={_names(named)}"
    whole = shares and sum(shares) <= _WHOLE
    share = f", with {sum(shares):.0%} of the change" if whole else ""
    return f"{about}: {which} changed ({len(moved):,} of {count:,}){share}"


def _names(rows: Sequence[PartChange]) -> str:
    return and_more([shown(one.part) for one in rows], 3)
