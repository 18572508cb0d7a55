"""Two runs: which metrics differ beyond noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.frames import Frames
from grpo_cli.commands.trend.detectors import changes
from grpo_cli.commands.trend.metrics import MASKED_START
from grpo_cli.commands.trend.onsets import FARTHEST, Change
from grpo_cli.commands.trend.step import Steps
from grpo_cli.commands.trend.watched import BOTH, ROUNDING, Watch, is_watched
from grpo_cli.errors import UsageError
from grpo_cli.terminal.numbers import and_more

LEAST_COMMON = 8
"""Steps that two runs must have in common."""
_CHANCE = 0.05
"""How probable it is that any metric is called different where none is (Bonferroni's bound)."""
Columns = tuple[F64, F64, Sequence[int]]
"""[n] the values of a metric in both runs, and the numbers of the steps."""
_ENOUGH = 30
"""Steps from which on a metric without a difference is judged."""
_NAMED = 3
"""Metrics that the headline names."""
_CLEAR = 5.0
"""Half-widths of a difference's interval from which on it is not chance, for any number of steps:
of 60 healthy pairs none had one, over the first 12 to 120 steps or the last 12."""
_NEAR = 5
"""Steps around the beginning of a difference within which a change of one side is that change."""

_BLOCKS, _WANDERS = 6, 3.0
"""Parts of a series whose means show whether it wanders; the least factor of noise of these."""


@dataclass(frozen=True)
class Difference(Answer):
    """A metric of both sides.

    Attributes:
        name: of the metric.
        first, second: its means over the steps that all runs have, or from ``since`` on.
        difference: second − first.
        low, high: its interval of 95 %, for the noise of steps and for how far two seeds diverge.
            It may hold 0 where the metric differs at a single step, or by a factor alone.
        differs: whether it is beyond that, as many metrics as are looked at, or begins at one step;
            by the factor between both sides where a positive metric is watched on a log scale.
            Also where it is five times as large as half its interval, where no value of one side
            is as large as any of the other, or where one side alone has a fault that ``trend``
            finds and that lasts.
        since: the step from which on it differs; None where it does not.
        steps: how many steps have it in both runs.
        higher, lower: at how many of these it is higher, and lower, in the second run.
    """

    name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    differs: bool = False
    since: int | None = None
    steps: int = 0
    higher: int = 0
    lower: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether the interval has nothing but what rounding leaves of the metric's size."""
        size = max(abs(self.first), abs(self.second))
        return max(abs(self.low), abs(self.high)) <= ROUNDING * size

    @property
    def misses_0(self) -> bool:
        """Whether the interval misses 0, which of 20 metrics one does by chance."""
        return not (self.is_equal or self.low <= 0.0 <= self.high)


@dataclass(frozen=True)
class RunComparison(Frames, Answer):
    """The answer of ``trend --against``.

    Attributes:
        steps: the first and the last step that all runs have, and how many these are.
        metrics: the differences, those beyond noise first.
        notes: what the intervals do not cover.
    """

    steps: Sequence[int]
    metrics: Sequence[Difference]
    notes: Sequence[str]

    @property
    def headline(self) -> str:
        """How many metrics of two runs differ, and which, from which step on."""
        first, last, count = self.steps
        if not self.metrics:
            return "the runs have no metric in common that grpo compares"
        if len(self.equal) == len(self.metrics):
            return f"all {len(self.metrics)} metrics are equal"
        if not self.differing:
            short = f"{count} steps ({first} to {last}) are too few to decide"
            seeds = f"no metric differs beyond chance ({len(self.metrics)} compared)"
            return "; ".join(filter(None, (short if self.is_short else seeds, self._consistent)))
        named = [
            one.name + ("" if one.since == first else f" (from step {one.since})")
            for one in self.differing
        ]
        verb = "differs" if len(named) == 1 else "differ"
        which = and_more(named, _NAMED)
        return f"{len(named)} of {len(self.metrics)} metrics {verb}: {which}"

    @property
    def _consistent(self) -> str:
        """The metric that is higher, or lower, at the largest share of steps, beyond chance."""
        unequal = (one for one in self.metrics if not one.is_equal)
        one = max(unequal, key=lambda one: abs(one.higher - one.lower) / math.sqrt(one.steps))
        away = abs(one.higher - one.lower)
        chance = NormalDist().inv_cdf(1 - _CHANCE / 2 / len(self.metrics))
        if away <= chance * math.sqrt(one.steps):  # of a fair coin
            return ""
        side, at = ("higher", one.higher) if one.higher > one.lower else ("lower", one.lower)
        size = f"{float(f'{one.difference:.2g}'):+g} on average"
        return f"{one.name} of the second run is {side} at {at} of {one.steps} steps ({size})"

    @property
    def basis(self) -> str:
        """What the headline is based on: steps, what it is compared with, and what is undecided."""
        first, last, count = self.steps
        words = f"Compared: {count:,} steps ({first} to {last}), against the usual spread between "
        words += "seeds."
        if self.is_short and len(self.differing) + len(self.equal) < len(self.metrics):
            which = "unmarked metrics" if self.differing else "metrics"
            words += f" {count} steps are too few to judge the {which} ({_ENOUGH} are needed)."
        return words

    def table(self) -> list[dict[str, Any]]:
        """A row for each metric, those beyond noise first."""
        return [one.fields() for one in self.metrics]

    @property
    def differing(self) -> list[Difference]:
        """The metrics that differ."""
        return [one for one in self.metrics if one.differs]

    @property
    def equal(self) -> list[Difference]:
        """The metrics that are equal, but for rounding, as far as their interval shows."""
        return [one for one in self.metrics if one.is_equal]

    @property
    def is_short(self) -> bool:
        """Whether there are fewer steps than a metric without a difference needs."""
        return self.steps[2] < _ENOUGH


def compare_runs(first: Steps, second: Steps) -> RunComparison:
    """Compares the metrics of two runs over the steps that both have.

    A metric differs where the steps' paired differences begin at some step, as faults do, or are
    beyond a random walk.

    Raises:
        UsageError: for a log and records, or where the runs have fewer than eight common steps.
    """
    if first.logged != second.logged:
        raise UsageError("--against: one run is a log; --log compares a log with records")
    common = sorted({*first.numbers} & {*second.numbers})
    if len(common) < LEAST_COMMON:
        raise UsageError(
            f"--against: the runs share {len(common)} steps; at least {LEAST_COMMON} are needed"
        )
    notes = list[str]()
    found = _columns(first, second, common)
    differ = _first_difference(found.values(), common[0])
    if differ > common[0] and differ <= common[-LEAST_COMMON]:
        notes.append(f"the runs are equal before step {differ}; compared from there on")
        common = [step for step in common if step >= differ]
        found = _columns(first, second, common)
    level = 1 - _CHANCE / max(len(found), 1)
    rows = [_difference(name, *both, level, first.watch(name)) for name, both in found.items()]
    rows.sort(key=lambda one: (not one.differs, one.differs or not one.misses_0, one.since or 0))
    notes += [
        f"the {side} run has {name} that {broken.words} at step {run.numbers[broken.places[0]]}"
        for side, run in (("first", first), ("second", second))
        for name, broken in run.not_finite.items()
    ]
    return RunComparison([common[0], common[-1], len(common)], rows, notes)


def _columns(first: Steps, second: Steps, common: Sequence[int]) -> dict[str, Columns]:
    """The watched metrics that both runs have at enough of their common steps.

    A run without a masked first token has no column of them; their share is 0.
    """
    found: dict[str, Columns] = {}
    one_sided = {MASKED_START.name} & (first.metrics.keys() ^ second.metrics.keys())
    shared = (name for name in first.metrics if name in second.metrics)
    for name in (*one_sided, *shared):
        if not (first.logged or is_watched(name)):
            continue
        mine, yours = (
            one.metrics.get(name, np.zeros(len(one.numbers)))[np.isin(one.numbers, common)]
            for one in (first, second)
        )
        kept = np.flatnonzero(~np.isnan(mine + yours)).tolist()
        if len(kept) >= LEAST_COMMON:
            found[name] = mine[kept], yours[kept], [common[at] for at in kept]
    return found


def _first_difference(found: Iterable[Columns], otherwise: int) -> int:
    """The first step at which any metric of two runs differs: before it nothing is noise."""
    differences = ((mine != yours, numbers) for mine, yours, numbers in found)
    steps = (numbers[int(np.argmax(differ))] for differ, numbers in differences if differ.any())
    return min(steps, default=otherwise)


def _difference(
    name: str, mine: F64, yours: F64, numbers: Sequence[int], level: float, watch: Watch | None
) -> Difference:
    """A metric's difference over all steps, and from which of them on there is one.

    Args:
        name: of the metric.
        mine, yours: [n] its values in both runs.
        numbers: of the steps.
        level: the confidence of a difference beyond noise.
        watch: how the metric is watched: on a log scale logarithms decide, where all have one.
    """
    by_factor = watch is not None and watch.is_log and min(mine.min(), yours.min()) > 0.0
    difference = np.log(yours) - np.log(mine) if by_factor else yours - mine
    row = _means(name, mine, yours)
    if row.is_equal:
        return row
    of_runs = [] if watch is None else changes([(watch, mine), (watch, yours)])
    # one group more or less is a spike where a share is 0 else
    spikes = 0.0 if watch is None or watch.scale == "share" else watch.spikes
    begun = _beginnings(difference, "log" if by_factor else "linear", spikes)
    begun = begun or _of_one_side(of_runs)
    disjoint = mine.max() < yours.min() or yours.max() < mine.min()
    half = row.difference - row.low
    clear = abs(row.difference) >= _CLEAR * half > 0.0
    beyond = clear or walked_mean(difference).is_beyond(level)
    if not (begun or beyond or disjoint):
        return row
    lasting = [one for one in begun if one.end is None]
    at = next((_as_alone(one.at, of_runs) for one in lasting or begun), 0)
    return replace(_means(name, mine, yours, at), differs=True, since=numbers[at])


def _means(name: str, mine: F64, yours: F64, at: int = 0) -> Difference:
    """A metric of both runs from a place on; the noise of a short part is that of all."""
    difference = yours - mine
    change, count = walked_mean(difference[min(at, len(mine) - LEAST_COMMON) :]), len(mine) - at
    if count < LEAST_COMMON:
        error, freedom = _noise(difference)
        change = Estimate(float(difference[at:].mean()), error / math.sqrt(count), freedom)
    value, half = change.value, change.half_width()
    first, second = (float(one[at:].mean()) for one in (mine, yours))
    interval = value - half, value + half
    higher, lower = (int((one[at:] > 0.0).sum()) for one in (difference, -difference))
    return Difference(
        name, first, second, value, *interval, steps=count, higher=higher, lower=lower
    )


def _beginnings(difference: F64, scale: str, spikes: float) -> list[Change]:
    """Where the difference of two runs, or on a log scale their factor, begins to be another."""
    both = Watch("difference", BOTH, BOTH, scale, spikes=spikes)
    spike = Watch("difference", scale=scale, spikes=spikes)  # of the other run
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


# ---- how sure a mean is ------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A number with its standard error, and how many independent values that rests on."""

    value: float
    error: float
    freedom: float

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval that holds the true value at a level."""
        return self.error * t_quantile(0.5 + level / 2, self.freedom)

    def is_beyond(self, level: float) -> bool:
        """Whether it differs from 0 at a level."""
        return abs(self.value) > self.half_width(level)


def walked_mean(values: F64) -> Estimate:
    """The mean of a series that wanders off from 0, as the difference of two seeds does.

    Its error is that of neighbours' noise and of a random walk, where the means of sixths of the
    series differ by more than three times what noise explains. It is the median of their squared
    differences that counts: what one change adds at once is no walk.
    """
    count = len(values)
    size = max(count // _BLOCKS, 1)
    means = values[count - size * _BLOCKS :].reshape(_BLOCKS, size).mean(axis=1)
    noise = fmean(_median_square(values[lag:] - values[:-lag]) for lag in (1, 2)) / size
    walk = max(_median_square(np.diff(means)) - _WANDERS * noise, 0.0) / size
    error, freedom = _noise(values)
    return Estimate(float(values.mean()), math.sqrt(error**2 / count + walk * count / 3), freedom)


def _median_square(values: F64) -> float:
    """The variance of normal values around 0, from the median of their squares."""
    return float(np.median(values**2)) / 0.455


def _noise(values: F64) -> tuple[float, float]:
    """The standard deviation of a series around a line, of independent values, and their number.

    It is raised by the first autocorrelation, itself raised by what a line takes of it,
    (2 + 4 ρ)/n, and by two standard errors: of 22 series that are noise alone, the largest is
    beyond its bound in at most 5 of 100 cases with ρ up to 0.8.
    """
    count, places = len(values), np.arange(len(values)) - (len(values) - 1) / 2
    left = values - values.mean()
    left = left - places * (float(places @ left) / float(places @ places))
    square = float(left @ left)
    rho = 0.0
    if square:
        raw = float(left[1:] @ left[:-1]) / square
        rho = min(raw + (2 + 4 * raw) / count, 1.0)
        rho = min(max(rho + 2 * math.sqrt((1 - rho**2) / count), 0.0), 0.99)
    times = (1 + rho) / (1 - rho)
    return math.sqrt(square / (count - 2) * times), max(count / times - 2, 3.0)


def t_quantile(share: float, freedom: float) -> float:
    """The quantile of Student's t by Cornish–Fisher's expansion, for 3 degrees and more."""
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
