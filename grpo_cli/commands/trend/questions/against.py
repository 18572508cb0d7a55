"""Two runs, or two sets of runs that differ by their seed: which metrics differ beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.questions.noise import (
    Estimate,
    difference_of_means,
    mean_of_neighbours,
)
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
    found = [
        one for name in names if (one := _difference(name, first, second, common, seeds=seeds))
    ]
    level = 1 - _CHANCE / max(len(found), 1)
    rows = [_row(*one, level) for one in found]
    rows.sort(key=lambda one: not (one.differs or one.differs_at_end))
    notes = [] if seeds else [_ONE_SEED]
    return RunComparison(
        [common[0], common[-1], len(common)], [len(first), len(second)], rows, notes
    )


def _difference(
    name: str,
    first: Sequence[Steps],
    second: Sequence[Steps],
    common: Sequence[int],
    *,
    seeds: bool,
) -> tuple[str, F64, F64, Estimate, Estimate] | None:
    """A metric's values on both sides, and the differences of all steps and of the last."""
    mine, yours = (
        np.array([_series(one, name, common) for one in side]) for side in (first, second)
    )
    kept = ~np.isnan(np.vstack([mine, yours])).any(axis=0)
    mine, yours = mine[:, kept], yours[:, kept]
    count = int(kept.sum())
    if count < _LEAST:
        return None
    last = max(count // _LAST, min(_LEAST_END, count))
    spans = [(mine[:, -width:], yours[:, -width:]) for width in (count, last)]
    if seeds:
        ends = [difference_of_means(one.mean(axis=1), other.mean(axis=1)) for one, other in spans]
    else:
        ends = [mean_of_neighbours(other.mean(axis=0) - one.mean(axis=0)) for one, other in spans]
    return name, mine, yours, ends[0], ends[1]


def _row(
    name: str, first: F64, second: F64, whole: Estimate, end: Estimate, level: float
) -> Difference:
    widths = whole.half_width(), end.half_width()
    differs, at_end = (abs(one.value) > one.half_width(level) for one in (whole, end))
    return Difference(
        name,
        float(first.mean()),
        float(second.mean()),
        whole.value,
        whole.value - widths[0],
        whole.value + widths[0],
        end.value,
        end.value - widths[1],
        end.value + widths[1],
        differs,
        at_end,
    )


def _series(steps: Steps, name: str, common: Sequence[int]) -> F64:
    """A metric at some of the steps."""
    return steps.metrics[name][np.isin(steps.numbers, common)]
