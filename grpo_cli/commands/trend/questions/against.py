"""Two runs, or two sets of runs that differ by their seed: which metrics differ beyond noise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.frames import Frames
from grpo_cli.commands.trend.detectors import changes
from grpo_cli.commands.trend.onsets import FARTHEST, Change
from grpo_cli.commands.trend.questions.noise import (
    Estimate,
    difference_of_means,
    is_steady_slope,
    walked_mean,
)
from grpo_cli.commands.trend.step import Steps
from grpo_cli.commands.trend.watched import BOTH, Watch, is_watched
from grpo_cli.errors import UsageError

LEAST_COMMON = 8
"""Steps that two runs must have in common."""
_CHANCE = 0.05
"""How probable it is that any metric is called different where none is (Bonferroni's bound)."""
_ONE_SEED = (
    "one run on each side cannot show how far two seeds differ; name several runs on each side, as "
    "RUN RUN --against RUN --against RUN"
)
Columns = tuple[F64, F64, Sequence[int]]
"""[runs, n] the values of a metric on both sides, and the numbers of the steps."""
_LAST, _LEAST_END = 4, 30
"""The end of runs is their last quarter, and no fewer than so many steps."""
_NAMED = 3
"""Metrics that the headline names: those that differ, or the largest differences."""
_SINCE = "since", "since_then", "since_low", "since_high"
_CLEAR = 5.0
"""Half-widths of a difference's interval from which on it is not chance, for any number of steps:
of 60 healthy pairs none had one, over the first 12 to 120 steps or the last 12; of values that
do not overlap there were 5 in 1,335 over the last 12, none over the first."""

_STEP, _NEAR_0, _WANDERS = 12.4, 4.0, 0.4
"""Andrews' 1 % point (1993) for one break at an unknown place, in variances; the most of these that
the mean before it may be away from 0; the least correlation of neighbours of what wanders."""

_ROUNDING = 1e-12
"""The share of a metric's size up to which a difference is rounding."""
_NEAR = 5
"""Steps around the beginning of a difference within which a change of one side is that change."""


@dataclass(frozen=True)
class Difference(Answer):
    """A metric of both sides.

    Attributes:
        name: of the metric.
        first, second: its means over the steps that all runs have.
        difference: second − first.
        low, high: its interval of 95 %: of runs, where both sides have several; else of steps,
            for their noise and for how far two seeds diverge.
        at_end: the difference over the last quarter of the steps (at least 30).
        end_low, end_high: the interval of that.
        differs, differs_at_end: whether it is beyond that, as many metrics as are looked at, or
            begins at one step; by the factor between both sides where a positive metric is watched
            on a log scale. Also where it is five times as large as half its interval, where no
            value of one side is as large as any of the other, or where one side alone has a fault
            that ``trend`` finds and that lasts.
        since: the step from which on it differs; None where it does not.
        factor, end_factor: second / first, the quotient of the means, of a positive metric that is
            watched on a log scale.
        since_then, since_low, since_high: the difference over the steps from ``since`` on, and its
            interval; None where it does not differ, or over fewer than eight steps.
        drifts, drifts_at_end: whether it differs only because the difference, or the factor, goes
            one way all along.
    """

    name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    at_end: float
    end_low: float
    end_high: float
    differs: bool
    differs_at_end: bool
    since: int | None = None
    factor: float | None = None
    end_factor: float | None = None
    since_then: float | None = None
    since_low: float | None = None
    since_high: float | None = None
    drifts: bool = False
    drifts_at_end: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether the interval has nothing but what rounding leaves."""
        size = max(abs(self.first), abs(self.second))
        return max(abs(self.low), abs(self.high)) <= _ROUNDING * size

    @property
    def is_marked(self) -> bool:
        """Whether it differs, over all steps or over the last."""
        return self.differs or self.differs_at_end

    @property
    def misses_0(self) -> bool:
        """Whether the interval misses 0, which of 20 metrics one does by chance."""
        return not (self.is_equal or self.low <= 0.0 <= self.high)


@dataclass(frozen=True)
class RunComparison(Frames, Answer):
    """The answer of ``trend --against``.

    Attributes:
        steps: the first and the last step that all runs have, and how many these are.
        runs: how many runs are on either side.
        metrics: the differences, those beyond noise first.
        notes: what the intervals do not cover.
        largest: with fewer than 30 steps, of the metrics that do not differ those
            with the largest differences, in standard deviations of the first run over all steps in
            common.
    """

    steps: Sequence[int]
    runs: Sequence[int]
    metrics: Sequence[Difference]
    notes: Sequence[str]
    largest: Sequence[str]

    @property
    def headline(self) -> str:
        """How many metrics of two runs differ, and which, from which step on."""
        first, last, count = self.steps
        if self.too_few and not self.differing:
            return f"{count} steps ({first} to {last}) are too few to decide"
        named = [one.name + _when(one, first) for one in self.differing[:_NAMED]]
        rest = len(self.differing) - len(named)
        which = f": {', '.join(named)}{f' and {rest} more' if rest else ''}" if named else ""
        verb = "differs" if len(self.differing) == 1 else "differ"
        return f"{len(self.differing)} of {len(self.metrics)} metrics {verb}{which}"

    @property
    def basis(self) -> str:
        """What the headline is based on: steps, what it is compared with, and what is undecided."""
        first, last, count = self.steps
        mine, yours = self.runs
        spread = "usual spread between seeds" if min(mine, yours) == 1 else "spread on each side"
        runs = f", {mine} runs against {yours}" if mine + yours > 2 else ""
        words = f"Compared: {count:,} steps ({first} to {last}){runs}, against the {spread}."
        if self.too_few and len(self.differing) + len(self.equal) < len(self.metrics):
            which = "unmarked metrics" if self.differing else "metrics"
            words += f" {count} steps are too few to judge the {which} ({_LEAST_END} are needed)."
        if self.largest:
            named = ", ".join(self.largest)
            words += f" Largest so far, in standard deviations of the first run: {named}."
        return words

    def table(self) -> list[dict[str, Any]]:
        """A row for each metric, those beyond noise first."""
        names = "name", "first", "second", "difference", "low", "high", "differs", *_SINCE
        return [{name: getattr(one, name) for name in names} for one in self.metrics]

    @property
    def differing(self) -> list[Difference]:
        """The metrics that differ, over all steps or over the last."""
        return [one for one in self.metrics if one.is_marked]

    @property
    def equal(self) -> list[Difference]:
        """The metrics that are equal, but for rounding, as far as their interval shows."""
        return [one for one in self.metrics if one.is_equal]

    @property
    def has_end(self) -> bool:
        """Whether the last steps are others than all steps."""
        return self.steps[2] > _LEAST_END

    @property
    def too_few(self) -> bool:
        """Whether steps are the sample, and fewer than a metric without a difference needs."""
        return self.steps[2] < _LEAST_END and min(self.runs) == 1


def _when(one: Difference, first: int) -> str:
    """From when on a metric differs; "" if all along."""
    if one.since is None:
        return "" if one.differs else " at the end"
    return "" if one.since == first else f" from step {one.since}"


def compare_runs(first: Sequence[Steps], second: Sequence[Steps]) -> RunComparison:
    """Compares the metrics of runs over the steps that all of them have.

    A log's series are compared with those of records that they are, whatever their names are. Of
    several runs on both sides the runs are the sample. Else the steps' paired differences are,
    and a metric differs where they begin at some step, as faults do, or are beyond a random walk.

    Raises:
        UsageError: where the runs have fewer than eight steps in common.
    """
    sides, unnamed = {"first": first, "second": second}, list[str]()
    if len({one.logged for one in (*first, *second)}) > 1:
        known = {
            name
            for one in (*first, *second)
            for name, column in one.metrics.items()
            if not one.logged and not np.isnan(column).all()
        }
        unnamed = [
            _about_log(side, one, known) for side in sides for one in sides[side] if one.logged
        ]
        first, second = ([one.as_records() for one in side] for side in (first, second))
    every = [*first, *second]
    common = sorted(set.intersection(*(set(one.numbers) for one in every)))
    if len(common) < LEAST_COMMON:
        raise UsageError(
            f"--against: the runs share {len(common)} steps; at least {LEAST_COMMON} are needed"
        )
    seeds = min(len(first), len(second)) > 1
    found, notes = dict[str, Columns](), unnamed + ([] if seeds else [_ONE_SEED])
    for name in every[0].metrics:
        watched = every[0].logged or is_watched(name)
        if not watched or any(name not in one.metrics for one in every):
            continue
        mine, yours = (
            np.array([one.metrics[name][np.isin(one.numbers, common)] for one in side])
            for side in (first, second)
        )
        kept = np.flatnonzero(~np.isnan(np.vstack([mine, yours])).any(axis=0))
        if len(kept) >= LEAST_COMMON:
            found[name] = mine[:, kept], yours[:, kept], [common[at] for at in kept]
    spreads = {name: float(mine.mean(axis=0).std(ddof=1)) for name, (mine, _, _) in found.items()}
    differ = common[0] if seeds else _first_difference(found.values(), common[0])
    if differ > common[0] and differ <= common[-LEAST_COMMON]:
        notes.append(f"the runs are equal before step {differ}; compared from there on")
        later = {name: _since(differ, *both) for name, both in found.items()}
        found = {name: both for name, both in later.items() if len(both[2]) >= LEAST_COMMON}
        common = [step for step in common if step >= differ]
    level = 1 - _CHANCE / max(len(found), 1)
    rows = [
        _difference(name, *both, level, every[0].watch(name), seeds=seeds)
        for name, both in found.items()
    ]
    early = common[0]
    rows.sort(
        key=lambda one: (not one.is_marked, one.is_marked or not one.misses_0, one.since or early)
    )
    notes += [
        f"the {side} run was resumed: the last pass over each step is compared"
        for side, runs in sides.items()
        if any(one.whole.passes for one in runs)
    ]
    notes += [
        f"the {side} run has {name} that {broken.words} at step {one.numbers[broken.places[0]]}"
        for side, runs in sides.items()
        for one in runs
        for name, broken in one.not_finite.items()
    ]
    undecided = [one for one in rows if not (one.is_marked or one.is_equal)]
    sizes = {
        one.name: abs(one.difference) / spreads[one.name] for one in undecided if spreads[one.name]
    }
    largest = sorted(filter(sizes.get, sizes), key=sizes.__getitem__, reverse=True)[:_NAMED]
    span, counts = [common[0], common[-1], len(common)], [len(first), len(second)]
    answer = RunComparison(span, counts, rows, notes, largest)
    return answer if answer.too_few else replace(answer, largest=[])


def _about_log(side: str, log: Steps, known: Container[str]) -> str:
    """With which known metrics of records the series of a log are compared, and which are not."""
    names = {name: log.record_name(name) for name in log.metrics}
    others = [name for name, record in names.items() if record not in known]
    alike = [
        name if name == record else f"{name} with {record}"
        for name, record in names.items()
        if record in known
    ]
    lacking = f"; records do not have {', '.join(others)}" if others else ""
    return f"the {side} run is a log; compared: {', '.join(alike) or 'nothing'}{lacking}"


def _first_difference(found: Iterable[Columns], otherwise: int) -> int:
    """The first step at which any metric of two runs differs: before it nothing is noise."""
    differences = (((mine != yours).any(axis=0), numbers) for mine, yours, numbers in found)
    steps = (numbers[int(np.argmax(differ))] for differ, numbers in differences if differ.any())
    return min(steps, default=otherwise)


def _since(step: int, mine: F64, yours: F64, numbers: Sequence[int]) -> Columns:
    """The columns from a step on."""
    first = bisect_left(numbers, step)
    return mine[:, first:], yours[:, first:], numbers[first:]


def _difference(
    name: str,
    mine: F64,
    yours: F64,
    numbers: Sequence[int],
    level: float,
    watch: Watch | None,
    *,
    seeds: bool,
) -> Difference:
    """A metric's differences over all steps and over the last.

    Args:
        name: of the metric.
        mine, yours: [runs, n] its values on both sides.
        numbers: of the steps.
        level: the confidence of a difference beyond noise.
        watch: how the metric is watched: on a log scale logarithms decide, where all have one.
        seeds: whether runs are the sample.
    """
    count = len(numbers)
    by_factor = watch is not None and watch.is_log and min(mine.min(), yours.min()) > 0.0
    left, right = (np.log(mine), np.log(yours)) if by_factor else (mine, yours)
    scale = "log" if by_factor else "linear"
    # one group more or less is a spike where a share is 0 else
    spikes = 0.0 if watch is None or watch.scale == "share" else watch.spikes
    largest = max(np.abs(mine).max(), np.abs(yours).max())
    rounding = np.abs(yours.mean(axis=0) - mine.mean(axis=0)).max() <= _ROUNDING * largest
    begun = [] if seeds else _beginnings(left, right, scale, spikes)
    of_sides = [] if seeds or watch is None else changes([(watch, mine[0]), (watch, yours[0])])
    place = None if seeds or begun else _step_of(right[0] - left[0])
    begun += [] if place is None else _of_one_side(of_sides)
    lasting = [one for one in begun if one.end is None]
    found: list[tuple[float, float, float, bool]] = []
    drifts: list[bool] = []
    factors: list[float | None] = []
    disjoint = not seeds and (mine.max() < yours.min() or yours.max() < mine.min())
    for last, begins in (count, begun), (max(count // _LAST, min(_LEAST_END, count)), lasting):
        change = _change(mine, yours, last, seeds=seeds)
        value, half = change.value, change.half_width()
        scaled = _change(left, right, last, seeds=seeds)
        rows = right.mean(axis=0) - left.mean(axis=0)
        beyond = scaled.is_beyond(level) or disjoint
        beyond = beyond or bool(begins) or (not seeds and abs(value) >= _CLEAR * half > 0.0)
        drifts.append(not (beyond or seeds) and is_steady_slope(rows[-last:], level))
        by = float(yours[:, -last:].mean() / mine[:, -last:].mean()) if by_factor else None
        factors.append(by)
        differs = not rounding and (beyond or drifts[-1])
        found.append((value, value - half, value + half, differs))
    whole, end = found
    means = float(mine.mean()), float(yours.mean())
    row = Difference(name, *means, *whole[:3], *end[:3], whole[3], end[3])
    row = replace(row, factor=factors[0], end_factor=factors[1])
    if not row.is_marked:
        return row
    row = replace(row, drifts=drifts[0], drifts_at_end=drifts[1])
    first = (lasting or begun)[:1]
    at = _as_alone(first[0].at, of_sides) if first else 0
    if place is not None and abs(place - at) > _NEAR and not (row.drifts or row.drifts_at_end):
        at = place
    row = replace(row, since=numbers[at])
    if count - at < LEAST_COMMON:
        return row
    change = _change(mine[:, at:], yours[:, at:], count - at, seeds=seeds)
    low, high = (change.value + sign * change.half_width() for sign in (-1, 1))
    return replace(row, since_then=change.value, since_low=low, since_high=high)


def _beginnings(mine: F64, yours: F64, scale: str, spikes: float) -> list[Change]:
    """Where the difference of two sides, or on a log scale their factor, begins to be another."""
    difference = yours.mean(axis=0) - mine.mean(axis=0)
    both = Watch("difference", BOTH, BOTH, scale, spikes=spikes)
    spike = Watch("difference", scale=scale, spikes=spikes)  # of the other side
    series = [difference, -difference]
    if scale == "log":
        series = [np.exp(one) for one in series]
    found = changes([*zip((both, spike), series, strict=True)])
    return sorted(chain.from_iterable(found), key=lambda one: one.at)


def _of_one_side(of_sides: Sequence[Sequence[Change]]) -> list[Change]:
    """The changes that last and are faults of one side, without those that the other has too."""
    found = list[Change]()
    for own, other in (of_sides, of_sides[::-1]) if of_sides else ():
        for one in own:
            alike = (each.up == one.up and abs(each.at - one.at) <= FARTHEST for each in other)
            if one.end is None and not one.info and not any(alike):
                found.append(one)
    return found


def _as_alone(at: int, of_sides: Sequence[Sequence[Change]]) -> int:
    """The place where a difference begins: that of a change of one side which trend would find.

    The difference has the noise of both, so that it may show the change some steps later.
    """
    near = [one.at for one in chain.from_iterable(of_sides) if abs(one.at - at) <= _NEAR]
    return min(near, key=lambda one: abs(one - at), default=at)


def _step_of(difference: F64) -> int | None:
    """The place from which on a difference is another by least squares, and near 0 before.

    None where there is none, and where what is left of it wanders as two seeds do.
    """
    count = len(difference)
    sizes = np.arange(LEAST_COMMON, count - LEAST_COMMON + 1)
    if not len(sizes):
        return None
    sums = np.cumsum(difference)
    before, after = sums[sizes - 1] / sizes, (sums[-1] - sums[sizes - 1]) / (count - sizes)
    explained = (after - before) ** 2 * sizes * (count - sizes) / count
    best = int(explained.argmax())
    place = int(sizes[best])
    left = difference - np.repeat([before[best], after[best]], [place, count - place])
    square = float(left @ left)
    wanders = float(left[1:] @ left[:-1]) > _WANDERS * square
    variance = square / (count - 2)
    is_step = explained[best] > _STEP * variance
    near_0 = before[best] ** 2 * place < _NEAR_0 * variance
    return place if is_step and near_0 and not wanders else None


def _change(mine: F64, yours: F64, last: int, *, seeds: bool) -> Estimate:
    """The difference of two sides over the last steps: of the runs' means, or of steps' pairs."""
    if seeds:
        ends = (side[:, -last:].mean(axis=1) for side in (mine, yours))
        return difference_of_means(*ends)
    return walked_mean(yours.mean(axis=0) - mine.mean(axis=0), last)
