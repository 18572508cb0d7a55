"""One step of a run: its metrics against the steps around it, its worst groups, what check says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.check.answer import Checked
from grpo_cli.commands.check.run import check
from grpo_cli.commands.report.groups import Choice, pointed_at, read_groups, worst_in
from grpo_cli.commands.trend.answer import of_steps, trend_of
from grpo_cli.commands.trend.metrics import worst_kind
from grpo_cli.commands.trend.onsets import DRIFT, FUTURE, PAST, SHIFT, levels, medians
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Flags, Place, Step, Steps
from grpo_cli.errors import UsageError

_LEAST = 5
"""Values that others must be for the size of one more to be known."""
UNUSUAL = 3.0
"""Robust standard deviations from which a metric is unusual."""
FACTS = ("reward_mean", "reward_std", "length_mean", "clip_fraction", "log_ratio_max")


@dataclass(frozen=True)
class MetricAt(Answer):
    """A metric at a step.

    Attributes:
        name: of the metric.
        before: the median of at most 30 steps before; while a shift or a drift of it lasts, that
            of the finding: the steps before its onset.
        at: its value.
        after: the median of at most 12 steps after; of a finding that begins here its own.
        size: by how many robust standard deviations it is away from the median of these steps
            before or, where there are fewer than five, of those after; of what is watched, on the
            scale on which ``trend`` compares it. None where nothing varies.
    """

    name: str
    before: float | None
    at: float | None
    after: float | None
    size: float | None


@dataclass(frozen=True)
class StepAnswer(Answer):
    """The answer of ``trend --at``.

    Attributes:
        step: the step.
        before, after: the first and the last of the steps that it is compared with.
        verdict: the verdict on the run, with the last good step.
        metrics: every metric of the step: those of its findings in their order, then others that
            are watched, then the rest, each the most unusual first.
        groups: the worst groups of the step, with the quantity in which each is worst.
        worst: the worst places, as a row of ``trend`` has them, in the order of the metrics.
        findings: the run's findings that begin at the step, or are worst there.
        check: the findings of ``grpo check`` in the step's records; None for a log.
    """

    step: int
    before: Sequence[int]
    after: Sequence[int]
    verdict: str
    last_good_step: int | None
    metrics: Sequence[MetricAt]
    groups: Sequence[Mapping[str, Any]]
    worst: Mapping[str, Place]
    findings: Sequence[Finding]
    check: Checked | None

    @property
    def places(self) -> Mapping[str, Place]:
        """The worst places of a step: its findings, or else what is unusual; or all."""
        found = [one.metric for one in self.findings]
        unusual = [one.name for one in self.metrics if abs(one.size or 0.0) >= UNUSUAL]
        kinds = {*map(worst_kind, found or unusual)}
        return {kind: one for kind, one in self.worst.items() if kind in kinds} or self.worst


def answer_of_step(run: Run | Steps, flags: Flags, at: int) -> tuple[StepAnswer, Step]:
    """What happened at a step (``--at``), and the step.

    Args:
        run: its records are read again; the steps of a log have none.
        flags: what it is read with.
        at: the step.

    Raises:
        UsageError: where the run has no such step.
    """
    records, steps = (None, run) if isinstance(run, Steps) else (run, run.read())
    answer = trend_of(records, steps, flags)
    place = _place_of(steps, at)
    step, groups, checked = steps[place], list[Mapping[str, Any]](), None
    here = [one for one in answer.findings if at in (one.onset, one.worst_step)]
    named = [*dict.fromkeys(one.metric for one in here)]
    before = steps.numbers[max(0, place - PAST) : place]
    after = steps.numbers[place + 1 : place + 1 + FUTURE]
    metrics = sorted(
        metrics_at(steps, place, answer.findings),
        key=lambda one: (
            named.index(one.name) if one.name in named else len(named),
            steps.watch(one.name) is None,
            _by_size(one),
        ),
    )
    kinds = dict.fromkeys([*filter(None, (worst_kind(one.name) for one in metrics)), *step.worst])
    worst = {kind: step.worst[kind] for kind in kinds if kind in step.worst}
    if records is not None:
        groups = _groups(step, worst, records)
        narrowed = of_steps(records.reader, [step], records.step_source)
        checked = None if step.has_rewards_alone else check(narrowed)
    happened = StepAnswer(
        at,
        [*before[:1], *before[-1:]],
        [*after[:1], *after[-1:]],
        answer.verdict,
        answer.last_good_step,
        metrics,
        groups,
        worst,
        here,
        checked,
    )
    return happened, step


def _place_of(steps: Steps, number: int) -> int:
    """The place of a step in a run.

    Raises:
        UsageError: where there is none of that number, with the nearest.
    """
    if number in steps.numbers:
        return steps.numbers.index(number)
    if not steps.numbers:
        raise UsageError(f"--at {number}: the run has no steps")
    near = min(steps.numbers, key=lambda one: abs(one - number))
    first, last = steps.numbers[0], steps.numbers[-1]
    raise UsageError(
        f"--at {number}: no such step between {first} and {last}; the nearest is {near}"
    )


def metrics_at(steps: Steps, place: int, findings: Sequence[Finding] = ()) -> Iterator[MetricAt]:
    """Each metric at a step, by its place, and around it: as the run's findings say it, if any."""
    number = steps.numbers[place]
    lasting = {
        one.metric: one
        for one in findings
        if one.kind in (SHIFT, DRIFT) and one.before is not None
        if one.onset <= number < (one.end or math.inf)
    }
    for name, column in steps.metrics.items():
        known, value, finding = steps.watch(name), steps.value(name, place), lasting.get(name)
        first = place if finding is None else steps.numbers.index(finding.onset)
        past, future = column[max(0, first - PAST) : first], column[place + 1 :][:FUTURE]
        past, future = past[~np.isnan(past)], future[~np.isnan(future)]
        if value is None and not len(past) and not len(future):
            continue
        others = past if len(past) >= _LEAST else future
        before, after = (float(medians(one)) if len(one) else None for one in (past, future))
        if finding is not None:
            before, after = finding.before, finding.after if first == place else after
        size = None
        if value is not None and len(others) >= _LEAST:
            values, least = np.concatenate((others, (value,))), 0.0
            if known is not None:
                if known.scale == "growth":  # of the whole run, not of a part
                    known = known._replace(scale="log")
                values, least = known.scaled(values), float(known.noise(values)[-1])
            size = _robust_size(float(values[-1]), values[:-1], least)
        yield MetricAt(name, before, value, after, size)


def _robust_size(value: float, others: F64, least: float = 0.0) -> float | None:
    """By how many standard deviations of other values a value is away from their median.

    The deviation is that of their median absolute deviation, or their own where more than half of
    them are equal, and no less than ``least``. None where nothing varies and the value is as the
    others are; infinite where it is not.
    """
    middle, spread = map(float, levels(others))
    spread = max(spread or float(others.std(ddof=1)), least)
    if spread:
        return (value - middle) / spread
    return None if value == middle else math.copysign(math.inf, value - middle)


def _by_size(one: MetricAt) -> float:
    return -abs(one.size) if one.size is not None else 1.0 if one.at is not None else 2.0


def _groups(step: Step, worst: Mapping[str, Place], run: Run) -> list[Mapping[str, Any]]:
    """The groups in which a step is worst in something, in the order of that."""
    pointed = pointed_at((step.number, one) for one in worst.values())
    choice = Choice({step.number: "asked"}, pointed, groups=0, seed=0)
    rows: list[Mapping[str, Any]] = []
    for group in read_groups(run, [step], choice).steps.get(step.number, ()):
        facts = group.facts
        if kinds := worst_in(facts, worst):
            head = {name: facts[name] for name in ("group", "record", "source", "line")}
            rows.append(head | {"worst_in": kinds} | {name: facts[name] for name in FACTS})
    return sorted(rows, key=lambda row: [*worst].index(row["worst_in"][0]))
