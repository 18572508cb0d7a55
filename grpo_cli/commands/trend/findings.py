"""Where a run changed: the onsets of its metrics, and the limits that frameworks publish."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.metrics import METRICS, Metric
from grpo_cli.commands.trend.metrics import metric as metric_of
from grpo_cli.commands.trend.onsets import LEAST, Onset, Series, onsets, vanished
from grpo_cli.commands.trend.step import Finding, Flags, Place, Step, series_of
from grpo_cli.terminal.numbers import shown


class Limit(NamedTuple):
    """A bound that a framework publishes; told when most of five steps pass it, or of all."""

    metric: str
    bound: float
    source: str
    above: bool = True


LIMITS = (
    Limit("mismatch.mult", 1.05, "NeMo-RL docs/guides/dtensor-tp-accuracy.md:31"),
    Limit("mismatch.chi2", 1.0, "verl docs/algo/rollout_corr.md:1068"),
    Limit("mismatch.ess", 0.3, "verl docs/algo/rollout_corr.md:1001", above=False),
)
_OF, _MOST = 5, 3


_NO_FLAGS = Flags()


class _Known(NamedTuple):
    """Some of the steps, by their places."""

    all: Sequence[Step]
    places: Sequence[int]

    def at(self, place: int) -> Step:
        """One of them."""
        return self.all[self.places[place]]


class _Watched(NamedTuple):
    """A series in which onsets are looked for: the steps that have it, and its values."""

    metric: Metric
    steps: _Known
    values: F64


def findings(steps: Sequence[Step], flags: Flags = _NO_FLAGS) -> list[Finding]:
    """Where a run changed, the earliest first.

    Args:
        steps: by number.
        flags: what goes into the commands.
    """
    watched = _watched(steps)
    pairs = zip(watched, _onsets(watched), strict=True)
    found = [_found(one, onset, flags) for one, onset in pairs if onset is not None]
    found += [one for limit in LIMITS for one in _beyond(limit, steps, flags)]
    return sorted(found, key=lambda one: one.onset)


def _watched(steps: Sequence[Step]) -> list[_Watched]:
    """The series that are long enough."""
    known = map(metric_of, steps[0].metrics if steps else ())
    watched = (_series(one, steps) for one in known if one is not None and one.watched)
    return [one for one in watched if len(one.values) >= LEAST]


def _series(metric: Metric, steps: Sequence[Step]) -> _Watched:
    return _Watched(metric, *_known(metric.name, steps))


def _known(name: str, steps: Sequence[Step]) -> tuple[_Known, F64]:
    """The steps that have a metric, and its values."""
    values = series_of(steps, name)
    places = np.flatnonzero(~np.isnan(values))
    return _Known(steps, places.tolist()), values[places]


def _onsets(watched: Sequence[_Watched]) -> list[Onset | None]:
    gone = [vanished(one.values) if one.metric.log else None for one in watched]
    series = [
        Series(
            _scaled(one.values, one.metric), one.metric.drift == "up", one.metric.drift == "down"
        )
        for one in watched
    ]
    return [first or second for first, second in zip(gone, onsets(series), strict=True)]


def _found(watched: _Watched, found: Onset, flags: Flags) -> Finding:
    metric, known, values = watched
    worst = _farthest(values, found)
    told = _sentence(metric, found, values, known)
    one = _finding(metric, found.kind, known.at(found.at), told, known.at(worst), flags)
    return replace(one, score=float(found.score))


def _scaled(values: F64, metric: Metric) -> F64:
    """By its logarithm, what spans orders of magnitude; zeros as half the least that is not."""
    if not metric.log or (values < 0.0).any() or not (values > 0.0).any():
        return values
    return np.log(np.maximum(values, values[values > 0.0].min() / 2))


def _farthest(values: F64, found: Onset) -> int:
    after = values[found.at :]
    return found.at + int(after.argmax() if found.up else after.argmin())


def _sentence(metric: Metric, found: Onset, values: F64, known: _Known) -> str:
    step = known.at(found.at).number
    if math.isinf(found.score):
        return f"{metric.name} is exactly 0 from step {step} on: {shown(found.before)} before"
    before = float(np.median(values[max(0, found.at - 30) : found.at]))
    future = values[found.at : found.at + 12]
    after = float(np.median(future if found.kind == "shift" else future[-4:]))
    verb = {
        ("shift", True): "rose",
        ("shift", False): "fell",
        ("drift", True): "began to rise",
        ("drift", False): "began to fall",
    }[found.kind, found.up]
    return (
        f"{metric.name} {verb} at step {step}: "
        f"{shown(before)} before, {shown(after)} after ({found.score:.0f} standard errors)"
    )


def _beyond(limit: Limit, steps: Sequence[Step], flags: Flags) -> Iterator[Finding]:
    known, values = _known(limit.metric, steps)
    passed = values > limit.bound if limit.above else values < limit.bound
    most = min(_MOST, len(values) // 2 + 1)
    for at in np.flatnonzero(passed).tolist():
        window = passed[at : at + _OF]
        if window.sum() < most:
            continue
        worst = int(values.argmax() if limit.above else values.argmin())
        sentence = (
            f"{limit.metric} is {'above' if limit.above else 'below'} {limit.bound} "
            f"from step {known.at(at).number} on, {shown(float(values[worst]))} at its worst; "
            f"the limit is that of {limit.source}"
        )
        begun, farthest = known.at(at), known.at(worst)
        yield _finding(METRICS[limit.metric], "limit", begun, sentence, farthest, flags)
        return


def _finding(
    metric: Metric, kind: str, begun: Step, sentence: str, worst: Step, flags: Flags
) -> Finding:
    at_first, at_worst = _place(metric, begun), _place(metric, worst)
    return Finding(
        metric.name,
        kind,
        begun.number,
        sentence,
        command(begun, at_first, metric.worst, flags),
        worst.number,
        at_worst,
        cause=_cause(metric, begun, at_first, flags),
        worst_command=command(worst, at_worst, metric.worst, flags),
    )


def _place(metric: Metric, step: Step) -> Place | None:
    return None if metric.worst is None else step.worst.get(metric.worst)


_COLORS = {"nll": "log_prob"}


def command(step: Step, place: Place | None, kind: str | None, flags: Flags) -> str:
    """What shows the worst token of a step, or its responses where no token is to blame.

    Where the objective cannot be evaluated, that is left to ``grpo check``.
    """
    words, token = flags.words, place is not None and place.token is not None
    said = f"  # step {step.number}"
    if place is not None and token:
        said += f", token #{place.token} of response {place.response}: {shown(place.value)}"
    if step.metrics.get("objective", 0.0) is None:
        return shlex.join(["grpo", "check", *_there(step, place), *flags.reading]) + said
    if place is None or not token:
        there = [*_there(step, place), "--level", "response"]
        return shlex.join(["grpo", "eval", *there, *words]) + said
    color = ["--color-by", _COLORS.get(kind or "", kind or "ratio")]
    response = ["--response", str(place.response)]
    return shlex.join(["grpo", "show", *_there(step, place), *response, *color, *words]) + said


def _cause(metric: Metric, step: Step, place: Place | None, flags: Flags) -> str:
    """What may explain the finding: faults of the data, or why the loss is what it is."""
    explains = "explain" if metric.name in _OF_LOSS and place is not None else "check"
    taken = flags.words if explains == "explain" else flags.reading
    return shlex.join(["grpo", explains, *_there(step, place), *taken])


_OF_LOSS = ("loss",)


def _there(step: Step, place: Place | None) -> list[str]:
    """The record that is worst in the step, or all of the step."""
    if place is not None:
        return [place.source, "--record", str(place.record)]
    if not step.shares_file or step.key is None:
        return [step.file]
    return [step.file, "--where", f"{step.key}=={step.number}"]
