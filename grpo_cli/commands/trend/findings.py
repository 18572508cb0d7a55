"""The findings of a run, or of its log: where it changed, in words, with the commands to go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.detectors import (
    DRIFT,
    IMPOSSIBLE,
    LIMIT,
    RECENT,
    SHIFT,
    SPIKE,
    STUCK,
    Change,
    changes,
)
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.onsets import FUTURE, PAST
from grpo_cli.commands.trend.step import (
    INFO,
    WARNING,
    Finding,
    Flags,
    NotFinite,
    Place,
    Step,
    Steps,
)
from grpo_cli.commands.trend.watched import DOWN, PRACTICE, UP, Watch
from grpo_cli.terminal.numbers import shell_line, shown

_NO_FLAGS = Flags()
_LATEST = 4
"""The values of a drift's future of which the median is shown."""


class _Series(NamedTuple):
    """A metric that is watched, the places of the steps that have it, and its values there."""

    name: str
    watch: Watch
    places: I64
    values: F64


def findings(steps: Steps, flags: Flags = _NO_FLAGS) -> list[Finding]:
    """Where a run changed, the earliest first.

    Args:
        steps: by number.
        flags: what goes into the commands.
    """
    series = [*_watched(steps)]
    found = [
        _finding(one, steps, change, flags)
        for one, each in zip(series, changes([(s.watch, s.values) for s in series]), strict=True)
        for change in each
    ]
    found += [_not_finite(steps, name, one, flags) for name, one in steps.not_finite.items()]
    return sorted(found, key=lambda one: one.onset)


def _watched(steps: Steps) -> Iterator[_Series]:
    for name, column in steps.metrics.items():
        watch = steps.watch(name)
        if watch is not None:
            places = np.flatnonzero(~np.isnan(column))
            yield _Series(name, watch, places, column[places])


def _finding(series: _Series, steps: Steps, change: Change, flags: Flags) -> Finding:
    values = series.values
    end = len(values) if change.end is None or change.period else max(change.end, change.at + 1)
    after = values[change.at : change.at + 1 if change.kind == SPIKE and not change.period else end]
    worst = change.at + int(after.argmax() if change.up else after.argmin())
    begun, farthest = (int(series.places[at]) for at in (change.at, worst))
    number, numbers = steps.numbers[begun], steps.numbers
    ended = None if change.end is None else numbers[series.places[change.end]]
    until = "" if ended is None else f", until step {ended}"
    return Finding(
        series.name,
        change.kind,
        number,
        _SENTENCES[change.kind](series, change, number) + until,
        worst_step=numbers[farthest],
        score=change.score,
        direction=UP if change.up else DOWN,
        severity=INFO if change.info else WARNING,
        seen=numbers[series.places[change.seen - 1]],
        end=ended,
        period=change.period,
        **_commands(series.name, steps[begun], steps[farthest], flags),
    )


def _commands(name: str, begun: Step, worst: Step, flags: Flags) -> dict[str, Any]:
    """A finding's commands, of the steps where it began and where it is worst; and that place."""
    column = METRICS.get(name)
    kind = None if column is None else column.worst
    at_first, at_worst = (None if kind is None else one.worst.get(kind) for one in (begun, worst))
    return {
        "command": command(begun, at_first, kind, flags),
        "worst": at_worst,
        "cause": _cause(name, begun, at_first, flags),
        "worst_command": command(worst, at_worst, kind, flags),
    }


def _not_finite(steps: Steps, name: str, found: NotFinite, flags: Flags) -> Finding:
    """Of what is NaN or infinite at some steps."""
    begun, later = steps[found.places[0]], len(found.places) - 1
    many = f" and at {later:,} of the steps that follow" if later else ""
    sentence = f"{found.words} at step {begun.number}{many}"
    commands = _commands(name, begun, begun, flags)
    commands["command"] = commands["cause"]
    number = begun.number
    return Finding(name, IMPOSSIBLE, number, sentence, worst_step=number, seen=number, **commands)


# ---- sentences ----------------------------------------------------------------------------------


def _before(series: _Series, change: Change, most: int = PAST) -> str:
    return shown(float(np.median(series.values[max(0, change.at - most) : change.at])))


def _moved(series: _Series, change: Change, step: int) -> str:
    """Of a shift or a drift."""
    if series.watch.is_log and not series.values[change.at : change.seen].any():
        return f"{series.name} is exactly 0 from step {step} on: {_before(series, change)} before"
    future = series.values[change.at : change.end][:FUTURE]
    after = float(np.median(future if change.kind == SHIFT else future[-_LATEST:]))
    usual = float(np.median(series.values[max(0, change.at - PAST) : change.at]))
    most = PAST if (after > usual) == change.up else RECENT  # it had moved the other way before
    verb = {
        (SHIFT, True): "rose",
        (SHIFT, False): "fell",
        (DRIFT, True): "began to rise",
        (DRIFT, False): "began to fall",
    }[change.kind, change.up]
    of = "it was constant" if math.isinf(change.score) else f"{change.score:.0f} standard errors"
    before = f"{_before(series, change, most)} before, {shown(after)} after"
    return f"{series.name} {verb} at step {step}: {before} ({of})"


def _jumped(series: _Series, change: Change, step: int) -> str:
    often = f" and every {change.period} steps from then on" if change.period else ""
    return (
        f"{series.name} jumped at step {step}{often}: {_before(series, change)} before, "
        f"{shown(float(series.values[change.at]))} at that step"
    )


def _passed(series: _Series, change: Change, step: int) -> str:
    limit, values = change.limit, series.values[change.at :]
    assert limit is not None
    extreme = shown(float(values.max() if limit.above else values.min()))
    if limit.times:
        verb = "rose" if limit.above else "fell"
        factor = f"{limit.bound:g} times" if limit.above else f"{limit.bound:g} of"
        return (
            f"{series.name} {verb} from step {step} on: {_before(series, change)} before, "
            f"{extreme} at its {'highest' if limit.above else 'lowest'}, beyond {factor} its "
            "usual value"
        )
    source = (
        f"{_before(series, change)} before"
        if limit.source == PRACTICE
        else f"{limit.source} publishes this limit"
    )
    return (
        f"{series.name} is {'above' if limit.above else 'below'} {limit.bound} from step {step} "
        f"on, {extreme} at its worst; {source}"
    )


def _impossible(series: _Series, change: Change, step: int) -> str:
    low, high = series.watch.span
    bound = f"above {high:g}" if change.up else f"below {low:g}"
    value = shown(float(series.values[change.at]))
    return f"{series.name} is {value} at step {step}: it cannot be {bound}"


def _stuck(series: _Series, change: Change, step: int) -> str:
    count = len(series.values) if change.end is None else change.end
    value, steps = f"{series.watch.stuck:g}", f"all of the first {count:,} steps"
    return f"{series.name} is {value} from step {step} on, in {steps}: nothing is learnt"


_SENTENCES = {
    STUCK: _stuck,
    SHIFT: _moved,
    DRIFT: _moved,
    SPIKE: _jumped,
    LIMIT: _passed,
    IMPOSSIBLE: _impossible,
}


# ---- commands -----------------------------------------------------------------------------------

_COLORS = {"nll": "log_prob"}


def command(step: Step, place: Place | None, kind: str | None, flags: Flags) -> str:
    """What shows the worst token of a step, or its responses where no token is to blame.

    Where the objective cannot be evaluated, that is left to ``grpo check``.
    """
    if step.logged:
        return shell_line(["grpo", "explain", step.file])
    words, token = flags.words, place is not None and place.token is not None
    comment = f"  # step {step.number}"
    if place is not None and token:
        comment += f", token #{place.token} of response {place.response}: {shown(place.value)}"
    if step.metrics.get("objective", 0.0) is None:
        return shell_line(["grpo", "check", *_there(step, place), *flags.reading]) + comment
    if place is None or not token:
        there = [*_there(step, place), "--level", "response"]
        return shell_line(["grpo", "eval", *there, *words]) + comment
    color = ["--color-by", _COLORS.get(kind or "", kind or "ratio")]
    response = ["--response", str(place.response)]
    return shell_line(["grpo", "show", *_there(step, place), *response, *color, *words]) + comment


def _cause(metric: str, step: Step, place: Place | None, flags: Flags) -> str:
    """What may explain the finding: faults of the data, or why the loss is what it is."""
    if step.logged:
        return shell_line(["grpo", "explain", step.file])
    explains = "explain" if metric in _OF_LOSS and place is not None else "check"
    taken = flags.words if explains == "explain" else flags.reading
    return shell_line(["grpo", explains, *_there(step, place), *taken])


_OF_LOSS = ("loss",)


def _there(step: Step, place: Place | None) -> list[str]:
    """The record that is worst in the step, or all of the step."""
    if place is not None:
        return [place.source, "--record", str(place.record)]
    if not step.shares_file or step.key is None:
        return [step.file]
    return [step.file, "--where", f"{step.key}=={step.number}"]
