"""Two runs, or two sets of runs that differ by their seed: which metrics differ beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.questions.noise import difference_of_means, mean_of_neighbours
from grpo_cli.commands.trend.step import Steps
from grpo_cli.commands.trend.watched import is_watched
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
        differs, differs_at_end: whether it is beyond noise, as many metrics as are looked at.
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
    names = [
        name
        for name in every[0].metrics
        if all(name in one.metrics for one in every) and (every[0].logged or is_watched(name))
    ]
    found = {
        name: one for name in names if (one := _series_of(name, first, second, common)) is not None
    }
    level = 1 - _CHANCE / max(len(found), 1)
    rows = [_difference(name, *pair, level, seeds=seeds) for name, pair in found.items()]
    rows.sort(key=lambda one: not (one.differs or one.differs_at_end))
    notes = [] if seeds else [_ONE_SEED]
    return RunComparison(
        [common[0], common[-1], len(common)], [len(first), len(second)], rows, notes
    )


def _series_of(
    name: str, first: Sequence[Steps], second: Sequence[Steps], common: Sequence[int]
) -> tuple[F64, F64] | None:
    """[runs, n] a metric on both sides at the steps that all have; None where these are few."""
    mine, yours = (
        np.array([one.metrics[name][np.isin(one.numbers, common)] for one in side])
        for side in (first, second)
    )
    kept = ~np.isnan(np.vstack([mine, yours])).any(axis=0)
    return None if kept.sum() < _LEAST else (mine[:, kept], yours[:, kept])


def _difference(name: str, mine: F64, yours: F64, level: float, *, seeds: bool) -> Difference:
    """A metric's differences over all steps and over the last; ``level``: of one beyond noise."""
    count = mine.shape[1]
    found: list[tuple[float, float, float, bool]] = []
    for width in (count, max(count // _LAST, min(_LEAST_END, count))):
        one, other = mine[:, -width:], yours[:, -width:]
        if seeds:
            change = difference_of_means(one.mean(axis=1), other.mean(axis=1))
        else:
            change = mean_of_neighbours(other.mean(axis=0) - one.mean(axis=0))
        value, half = change.value, change.half_width()
        differs = abs(value) > change.half_width(level)
        found.append((value, value - half, value + half, differs))
    whole, end = found
    means = float(mine.mean()), float(yours.mean())
    return Difference(name, *means, *whole[:3], *end[:3], whole[3], end[3])
