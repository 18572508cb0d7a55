"""Two runs, or two sets of runs that differ by their seed: which metrics differ beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.detectors import changes
from grpo_cli.commands.trend.questions.noise import (
    Estimate,
    difference_of_means,
    mean_of_neighbours,
)
from grpo_cli.commands.trend.step import Steps
from grpo_cli.commands.trend.watched import BOTH, Watch, is_watched
from grpo_cli.errors import UsageError

_LEAST = 8
"""Steps that two runs must have in common."""
_CHANCE = 0.05
"""How probable it is that any metric is called different where none is (Bonferroni's bound)."""
_ONE_SEED = (
    "one run on each side: intervals include the noise between steps, but not the "
    "variation between seeds"
)
_LAST, _LEAST_END = 4, 30
"""The end of runs is their last quarter, and no fewer than so many steps."""
_DIFFERENCE = Watch("difference", BOTH, BOTH)


@dataclass(frozen=True)
class Difference(Answer):
    """A metric of both sides.

    Attributes:
        name: of the metric.
        first, second: its means over the steps that all runs have.
        difference: second − first.
        low, high: the interval that holds the true difference with 95 %.
        at_end: the difference over the last quarter of the steps (at least 30).
        end_low, end_high: the interval of that.
        differs, differs_at_end: whether it is beyond noise, as many metrics as are looked at; by
            the factor between both sides where a positive metric is watched on a log scale.
        since: the step from which on it differs; None where it does not.
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


@dataclass(frozen=True)
class RunComparison(Answer):
    """The answer of ``trend --against``.

    Attributes:
        steps: the first and the last step that all runs have, and how many these are.
        runs: how many runs are on either side.
        metrics: the differences, those beyond noise first.
        notes: what the intervals do not cover.
    """

    steps: Sequence[int]
    runs: Sequence[int]
    metrics: Sequence[Difference]
    notes: Sequence[str]


def compare_runs(first: Sequence[Steps], second: Sequence[Steps]) -> RunComparison:
    """Compares the metrics of runs over the steps that all of them have.

    Of several runs on both sides the runs are the sample; of one on either side, the steps' paired
    differences are, with an error that counts their autocorrelation.

    Raises:
        UsageError: where the runs have fewer than eight steps in common.
    """
    every = [*first, *second]
    common = sorted(set.intersection(*(set(one.numbers) for one in every)))
    if len(common) < _LEAST:
        raise UsageError(
            f"--against: the runs share {len(common)} steps; at least {_LEAST} are needed"
        )
    seeds = min(len(first), len(second)) > 1
    found: dict[str, tuple[F64, F64, list[int]]] = {}
    for name in every[0].metrics:
        watched = every[0].logged or is_watched(name)
        if not watched or any(name not in one.metrics for one in every):
            continue
        mine, yours = (
            np.array([one.metrics[name][np.isin(one.numbers, common)] for one in side])
            for side in (first, second)
        )
        kept = np.flatnonzero(~np.isnan(np.vstack([mine, yours])).any(axis=0))
        if len(kept) >= _LEAST:
            found[name] = mine[:, kept], yours[:, kept], [common[at] for at in kept]
    level = 1 - _CHANCE / max(len(found), 1)
    rows = []
    for name, (mine, yours, numbers) in found.items():
        watch = every[0].watch(name)
        by_factor = watch is not None and watch.is_log and min(mine.min(), yours.min()) > 0.0
        rows.append(
            _difference(name, mine, yours, numbers, level, seeds=seeds, by_factor=by_factor)
        )
    rows.sort(key=lambda one: not (one.differs or one.differs_at_end))
    notes = [] if seeds else [_ONE_SEED]
    return RunComparison(
        [common[0], common[-1], len(common)], [len(first), len(second)], rows, notes
    )


def _difference(
    name: str,
    mine: F64,
    yours: F64,
    numbers: Sequence[int],
    level: float,
    *,
    seeds: bool,
    by_factor: bool,
) -> Difference:
    """A metric's differences over all steps and over the last.

    Args:
        name: of the metric.
        mine, yours: [runs, n] its values on both sides.
        numbers: of the steps.
        level: the confidence of a difference beyond noise.
        seeds: whether runs are the sample.
        by_factor: whether logarithms decide what is beyond noise, since values are positive.
    """
    count = len(numbers)
    found: list[tuple[float, float, float, bool]] = []
    for width in (count, max(count // _LAST, min(_LEAST_END, count))):
        sides = mine[:, -width:], yours[:, -width:]
        change = _change(*sides, seeds=seeds)
        value, half = change.value, change.half_width()
        tested = _change(*map(np.log, sides), seeds=seeds) if by_factor else change
        found.append((value, value - half, value + half, tested.is_beyond(level)))
    whole, end = found
    since = None
    if whole[3] or end[3]:
        ways = [(np.log(one) if by_factor else one).mean(axis=0) for one in (mine, yours)]
        (begun,) = changes([(_DIFFERENCE, ways[1] - ways[0])])
        lasting = [one for one in begun if one.end is None] or begun
        since = numbers[lasting[0].at if lasting else 0]
    means = float(mine.mean()), float(yours.mean())
    return Difference(name, *means, *whole[:3], *end[:3], whole[3], end[3], since)


def _change(mine: F64, yours: F64, *, seeds: bool) -> Estimate:
    """The difference of two sides: of the runs' means, or of the steps' pairs."""
    if seeds:
        return difference_of_means(mine.mean(axis=1), yours.mean(axis=1))
    return mean_of_neighbours(yours.mean(axis=0) - mine.mean(axis=0))
