"""The findings of a run, or of its log: where it changed, in words, with the commands to go on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.detectors import RECENT, changes
from grpo_cli.commands.trend.limits import EARLIEST
from grpo_cli.commands.trend.metrics import legend, worst_kind
from grpo_cli.commands.trend.onsets import (
    DRIFT,
    FUTURE,
    IMPOSSIBLE,
    LEAST_FUTURE,
    LEAST_PAST,
    LIMIT,
    PAST,
    SHIFT,
    SPIKE,
    STUCK,
    TREND,
    Change,
    mean_change,
    medians,
)
from grpo_cli.commands.trend.step import FAR, INFO, WARNING, Finding, Flags, Place, Step, Steps
from grpo_cli.commands.trend.sums import PROMPT
from grpo_cli.commands.trend.watched import DOWN, PRACTICE, SIGNED, UP, Watch
from grpo_cli.terminal.numbers import brief, shell_line, shown

COPIED_REFERENCE = "log_probs_ref equals log_probs_old at all tokens"
_FACTOR = 1.2
"""The least factor that says more than two numbers."""
_WHOLE = 10
"""The factor from which on it is given without decimals."""
_LATEST = 4
"""A drift's last values; their median is shown."""
_ENDS = 5
"""The values at either end of what goes one way all along; their medians are shown."""


class _Series(NamedTuple):
    """A metric that is watched, the places of the steps that have it, and its values there."""

    name: str
    watch: Watch
    places: I64
    values: F64


def findings(
    steps: Steps,
    flags: Flags = Flags(),  # noqa: B008
    ungrouped: str | None = None,
) -> list[Finding]:
    """Where a run changed, the earliest first.

    Args:
        steps: by number.
        flags: what goes into the commands.
        ungrouped: why no gradient is left, as ``Run`` has it.
    """
    series = [each for name in steps.metrics if (each := _series(steps, name)) is not None]
    found = [
        _finding(one, steps, _known(one, steps, change), flags, ungrouped)
        for one, each in zip(series, changes([(s.watch, s.values) for s in series]), strict=True)
        for change in each
    ]
    for name, wrong in steps.not_finite.items():
        begun, later = steps[wrong.places[0]], len(wrong.places) - 1
        many = f" and at {later:,} of the steps that follow" if later else ""
        sentence = f"{wrong.words} at step {begun.number}{many}"
        commands = _commands(name, begun, begun, flags)
        commands["command"], at = commands["cause"], begun.number
        one = Finding(name, IMPOSSIBLE, at, sentence, worst_step=at, seen=at, **commands)
        found.append(one)
    found += _copied_reference(steps, found, flags)
    return sorted(found, key=lambda one: one.onset)


def _copied_reference(steps: Steps, found: Sequence[Finding], flags: Flags) -> Iterator[Finding]:
    """That log_probs_ref equals log_probs_old from a step on, where no series shows it."""
    at = steps.copied_reference
    if at is None or any((x.metric, x.onset) == ("kl_k3", steps.numbers[at]) for x in found):
        return
    number, seen = steps.numbers[at], steps.numbers[at + LEAST_FUTURE - 1]
    sentence = f"{COPIED_REFERENCE} from step {number} on"
    values = steps.metrics["kl_k3"]
    more: dict[str, Any] = {"worst_step": number, "seen": seen, "has_past": at > 0}
    if at:
        more |= {"before": level_of(values[max(at - PAST, 0) : at])}
        more |= {"after": level_of(values[at : at + FUTURE])}
    more |= _commands("kl_k3", steps[at], steps[at], flags)
    yield Finding("kl_k3", SHIFT if at else STUCK, number, sentence, direction=DOWN, **more)


def _series(steps: Steps, name: str) -> _Series | None:
    """A metric's values at the steps that have it; None where it is not watched."""
    watch, column = steps.watch(name), steps.metrics[name]
    if watch is None:
        return None
    known = ~np.isnan(column)
    if name == "at_longest":  # one response has one length
        known &= steps.counted("samples") > 1.0
    places = np.flatnonzero(known)
    return _Series(name, watch, places, column[places])


_LEARNT = {
    **dict.fromkeys(("length_mean", "gradient_norm", "reward_group_std", "entropy", "nll"), DOWN),
    "groups_equal": UP,
}
"""What a policy that gets more reward brings with it, which is no fault by itself."""
_MOST_AT_ONCE = 0.8
"""The share of a fall of entropy that four steps have made where no policy learns so fast."""
_COLLAPSE = 3.7
"""The factor by which entropy falls in models whose scores then rise no more: by 73 %
(arXiv:2505.22617). Policies that learn get surer by less."""
_LEAST_GAIN = 3.0
"""Standard errors by which the reward rose since, from which on it did."""


def _known(series: _Series, steps: Steps, change: Change) -> Change:
    """The change; information where it is no fault.

    That is so of a limit for engines with the trainer's weights, where the engine is behind by
    design; of a prompt that most steps lack; and of what the policy learnt: the reward rose with
    it, up to the step that shows it.
    """
    if f"/{PROMPT}" in series.name and 2 * len(series.values) < len(steps):
        return change._replace(info=True)
    if change.kind == LIMIT and _lags(series, steps, change):
        return change._replace(info=True)
    way = UP if change.up else DOWN
    level = change.kind in (SHIFT, DRIFT) and not change.at_once
    learnt = level and _LEARNT.get(series.watch.name) == way
    rewards = steps.series_of("reward_mean") if learnt else None
    if rewards is None:
        return change
    at, seen = int(series.places[change.at]), int(series.places[change.seen - 1]) + 1
    sides = [one[~np.isnan(one)] for one in (rewards[max(at - PAST, 0) : at], rewards[at:seen])]
    if min(map(len, sides)) < LEAST_FUTURE:
        return change
    gain, error = mean_change(*sides)
    if gain <= _LEAST_GAIN * error:
        return change
    if series.watch.steady is not None:
        return _unless_collapsed(series.values, change)
    return change._replace(info=True)


def _unless_collapsed(values: F64, change: Change) -> Change:
    """A fall as information while it is slow and less than a collapse; else when it is known."""
    before = float(medians(values[max(0, change.at - PAST) : change.at]))
    levels = medians(sliding_window_view(values[change.at : change.end], LEAST_FUTURE))
    by = change.seen - change.at - LEAST_FUTURE
    if by <= 0 or before - levels[0] > _MOST_AT_ONCE * (before - levels[by]):
        return change
    collapsed = np.flatnonzero(levels[by:] < before / _COLLAPSE)
    if not len(collapsed):
        return change._replace(info=True)
    return change._replace(seen=change.seen + int(collapsed[0]))


def _lags(series: _Series, steps: Steps, change: Change) -> bool:
    """Whether the engine differs from the trainer by design, since its weights are older.

    Its versions say so, or the first step, at which all weights are the initial ones: it has less
    than a third of the mismatch. From then on the mismatch came slowly: in the first steps it
    grows with the age of the weights.
    """
    values, at = steps.series_of("mismatch.mean_abs"), int(series.places[change.at])
    if values is None or not series.name.startswith("mismatch."):
        return False
    lag, level = steps.series_of("staleness"), level_of(values[at : at + LEAST_FUTURE])
    older = lag is not None and bool(lag[at] > 0.0)
    if not older and not values[0] < _INITIAL * level_of(values[1 : at + LEAST_FUTURE]):
        return False
    if at < EARLIEST:
        return True
    most = float(np.nanmax(values[1:at]))
    return bool(values[at] < _AT_ONCE * most if at < LEAST_PAST else level < 2 * most)


def level_of(values: F64) -> float:
    """The median of the numbers that there are; NaN of none."""
    known = values[~np.isnan(values)]
    return float(medians(known)) if len(known) else math.nan


_AT_ONCE = 5.0
"""The least factor of a mismatch in the first steps that no growing age of the weights explains."""
_INITIAL = 1 / 3
"""The most that the first step may have of the mismatch of an engine that is behind by design."""


def _finding(
    series: _Series, steps: Steps, change: Change, flags: Flags, ungrouped: str | None
) -> Finding:
    values, numbers = series.values, steps.numbers
    end = len(values) if change.end is None or change.period else max(change.end, change.at + 1)
    after = values[change.at : change.at + 1 if change.kind == SPIKE and not change.period else end]
    worst = change.at + int(after.argmax() if change.up else after.argmin())
    begun, farthest = (int(series.places[at]) for at in (change.at, worst))
    ended, through = (
        None if change.end is None else numbers[series.places[change.end - back]] for back in (0, 1)
    )
    levels = _levels(series, change)
    named = [numbers[at] for at in levels.places[-1:] if change.kind != SHIFT]  # in the sentence
    until = "" if through in (None, *named) else f", through step {through}"
    return Finding(
        series.name,
        change.kind,
        numbers[begun],
        _sentence(series, change, levels, steps, ungrouped) + until,
        worst_step=numbers[farthest],
        score=change.score,
        direction=UP if change.up else DOWN,
        severity=INFO if change.info else WARNING,
        seen=numbers[series.places[change.seen - 1]],
        end=ended,
        through=through,
        period=change.period,
        at_once=change.at_once,
        has_past=change.kind != TREND and (change.limit is None or levels.before is not None),
        before=levels.before,
        after=levels.after,
        **_commands(series.name, steps[begun], steps[farthest], flags, falls=not change.up),
    )


class _Levels(NamedTuple):
    """What a series was before a change, and what it is since: in the steps at these places."""

    before: float | None
    after: float | None
    places: I64 = np.zeros(0, np.int64)


def _levels(series: _Series, change: Change) -> _Levels:
    """The medians before and after a change; of single values and of limits, the value itself."""
    values, at = series.values, change.at
    since = values[at : change.end]
    if change.kind == TREND:
        return _Levels(_median(since[:_ENDS]), _median(since[-_ENDS:]))
    before = _median(values[max(0, at - PAST) : at])
    if change.kind in (IMPOSSIBLE, STUCK):
        return _Levels(None, float(values[at]))
    if change.kind == SPIKE:
        return _Levels(before, float(values[at]))
    if change.limit is not None:
        every = values[at:]
        if at < LEAST_PAST and series.name.startswith("mismatch."):
            before = None  # an engine that is always a step behind is so from the second step on
        return _Levels(before, float(every.max() if change.up else every.min()))
    last = min(at + FUTURE, at + len(since))
    first = at if change.kind == SHIFT else max(last - _LATEST, at)
    after = _median(values[first:last])
    if before is not None and after is not None and (after > before) != change.up:
        before = _median(values[max(0, at - RECENT) : at])  # it had moved the other way before
    return _Levels(before, after, series.places[first:last])


def _median(values: F64) -> float | None:
    return float(medians(values)) if len(values) else None


# ---- sentences ----------------------------------------------------------------------------------


def _sentence(
    series: _Series, change: Change, levels: _Levels, steps: Steps, ungrouped: str | None
) -> str:
    name, exact = series.name, float(series.values[change.at])
    step = steps.numbers[series.places[change.at]]
    if change.kind == SPIKE:
        verb = _VERBS[SPIKE][not change.up]
        before = f"median {brief(levels.before)} before"
        often = f" and every {change.period} steps from then on" if change.period else ""
        return f"{name} {verb} at step {step}{often}: {before}, {brief(exact)} at that step"
    if change.kind == IMPOSSIBLE:
        low, high = series.watch.span
        bound = f"above {high:g}" if change.up else f"below {low:g}"
        return f"{name} is {shown(exact)} at step {step}: it cannot be {bound}"
    if change.kind == STUCK:
        count = len(series.values) if change.end is None else change.end
        stuck = f"{name} is {series.watch.stuck:g} from step {step} on"
        why = "nothing is learnt" if ungrouped is None else ungrouped.partition(";")[0]
        return f"{stuck}, in all of the first {count:,} steps: {why}"
    if change.kind == TREND:
        last = len(series.values) if change.end is None else change.end
        span = steps.numbers[series.places[last - 1]] - step
        moved = f"{name} {STEADILY[not change.up]}: {brief(levels.before)} → {brief(levels.after)}"
        return moved + f" ({_factor(levels)} in {span:,} steps)".replace("( in", "(in")
    if change.limit is not None:
        return _passed(series, change, step, levels)
    return _moved(series, change, levels, steps)


def _factor(levels: _Levels) -> str:
    """How many times as large, or as small, a positive metric is after a change; else ""."""
    before, after = levels.before or 0.0, levels.after or 0.0
    if min(before, after) <= 0.0 or max(after / before, before / after) < _FACTOR:
        return ""
    factor = float(f"{max(after / before, before / after):.2g}")
    return f"{'×' if after > before else '÷'}{factor:{',.0f' if factor >= _WHOLE else 'g'}}"


def _moved(series: _Series, change: Change, levels: _Levels, steps: Steps) -> str:
    step = steps.numbers[series.places[change.at]]
    if series.watch.is_log and not series.values[change.at : change.end].any():
        before = f"median {brief(levels.before)} before"
        return f"{series.name} is exactly 0 from step {step} on: {before}"
    of = f" ({change.score:.0f} standard errors)"
    if change.score > FAR:
        factor = _factor(levels) if series.watch.is_log else ""
        of = f" ({factor})" if factor else ""
    if math.isinf(change.score):
        past = series.values[max(change.at - PAST, 0) : change.at]
        of = " (it was constant)" if (past == past[:1]).all() else ""
    verb = _VERBS[change.kind][not change.up]
    if series.watch.name == SIGNED and abs(levels.after or 0.0) > abs(levels.before or 0.0):
        verb = AWAY
    span = _in_steps([steps.numbers[at] for at in levels.places], since=change.kind == SHIFT)
    medians = f"median {brief(levels.before)} before, {brief(levels.after)} {span}"
    return f"{series.name} {verb} at step {step}: {medians}{of}"


def _in_steps(numbers: Sequence[int], *, since: bool) -> str:
    """The steps of which a number is the median, in words; ``since``: they begin at the onset."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"at step {first}"
    return f"over the next {len(numbers)} steps" if since else f"over steps {first} to {last}"


AWAY = "moved away from 0"
STEADILY = "rose steadily from the first step on", "fell steadily from the first step on"
_VERBS = {
    SHIFT: ("rose", "fell"),
    DRIFT: ("began to rise", "began to fall"),
    SPIKE: ("jumped", "dropped"),
    TREND: STEADILY,
    LIMIT: ("passed its limit",) * 2,
    IMPOSSIBLE: ("has an impossible value",) * 2,
}


def _passed(series: _Series, change: Change, step: int, levels: _Levels) -> str:
    limit = change.limit
    assert limit is not None
    source = f"{limit.source} has this limit for the {legend(series.watch.name)}"
    source = f"median {brief(levels.before)} before" if limit.source == PRACTICE else source
    usual = math.nan if levels.before is None else levels.before
    if limit.source == PRACTICE and limit.above and usual > limit.bound:
        passed = f"{series.name} rose further above {limit.bound} at step {step}"
        return f"{passed}, {shown(levels.after)} at its worst; {source}"
    since = series.values[change.at : change.end]
    inside = since <= limit.bound if limit.above else since >= limit.bound
    beyond = f"{'mostly ' * bool(inside.any())}{'above' if limit.above else 'below'} {limit.bound}"
    passed = f"{series.name} is {beyond} from step {step} on"
    return f"{passed}, {shown(levels.after)} at its worst; {source}"


def in_short(finding: Finding) -> str:
    """A finding's metric and what it did."""
    if AWAY in finding.sentence:
        return f"{finding.metric} {AWAY}"
    if not finding.direction or finding.score == 0.0:
        return f"{finding.metric} is not finite"
    if finding.kind == STUCK and (row := finding.row) is not None:
        return f"{finding.metric} is {row.stuck:g}"
    return f"{finding.metric} {_VERBS.get(finding.kind, _VERBS[SHIFT])[finding.direction == DOWN]}"


def in_numbers(finding: Finding) -> str:
    """A finding's metric, before and after."""
    name, before, after = finding.metric, finding.before, finding.after
    if after is None:
        return f"{name} not finite"
    return f"{name} {'' if before is None else f'{_rounded(before)} → '}{_rounded(after)}"


def _rounded(value: float) -> str:
    """A number with 3 significant digits, or all of a large one's before the point."""
    return f"{value:,.0f}" if _LARGE <= abs(value) < _HUGE else f"{value:.3g}"


_LARGE, _HUGE = 1e3, 1e9
"""From which on a number has no digits after the point, and from which on a power of ten."""


# ---- commands -----------------------------------------------------------------------------------


_LARGEST = {"ess", "mismatch.ess", "ratio_mean", "mismatch.k1", "loss"}
"""What may fall because of what is worst in the step."""


def _evidence(step: Step, name: str, kind: str | None, *, falls: bool) -> Place | None:
    """The place that shows a finding; no single one shows a fall."""
    return None if kind is None or (falls and name not in _LARGEST) else step.worst.get(kind)


def first_place(finding: Finding, steps: Steps) -> Place | None:
    """The place that a finding's commands name in the step where it began."""
    step, kind = steps[steps.numbers.index(finding.onset)], worst_kind(finding.metric)
    return _evidence(step, finding.metric, kind, falls=finding.direction == DOWN)


def _commands(
    name: str, begun: Step, worst: Step, flags: Flags, *, falls: bool = False
) -> dict[str, Any]:
    """A finding's commands, of the steps where it began and where it is worst; and that place."""
    kind = worst_kind(name)
    at_first, at_worst = (_evidence(one, name, kind, falls=falls) for one in (begun, worst))
    cause = None
    if begun.logged:
        cause = shell_line(["grpo", "explain", begun.file])
    elif begun.file and not begun.has_rewards_alone:  # faults, or why the loss is what it is
        explains = name == "loss" and at_first is not None
        taken = flags.words if explains else flags.reading
        there = _there(begun, at_first if explains else None)  # check compares its records
        cause = shell_line(["grpo", "explain" if explains else "check", *there, *taken])
    return {
        "command": command(begun, at_first, kind, flags),
        "worst": at_worst,
        "cause": cause,
        "worst_command": command(worst, at_worst, kind, flags),
    }


_VALUES = {"nll": "−log π", "ratio": "|log ratio|", "kl": "KL k3", "mismatch": "|mismatch|"}
"""What the number of a place is."""


def command(step: Step, place: Place | None, kind: str | None, flags: Flags) -> str | None:
    """What shows the worst token of a step, or its responses where no token is to blame.

    Where the objective cannot be evaluated, that is left to ``grpo check``. Of data in memory,
    which have no path, it is a call; None where no field says the step, and of rewards alone.
    """
    if step.has_rewards_alone:
        return None
    if not step.file:
        tests = [*flags.arguments.get("where", ()), f"{step.key}=={step.number}"]
        named = {**flags.arguments, "where": tests if len(tests) > 1 else tests[0]}
        given = "".join(f", {name}={value!r}" for name, value in named.items())
        return None if step.key is None else f"show(data{given})"
    if step.logged:
        return shell_line(["grpo", "explain", step.file])
    comment, there = f"  # step {step.number}", _there(step, place)
    token = place is not None and place.token is not None
    if place is not None and token:
        value = f"{_VALUES.get(kind or '', '')} {shown(place.value)}".lstrip()
        comment += f", position {place.token} of response {place.response}: {value}"
    if step.metrics.get("objective", 0.0) is None:
        words = ["check", *there, *flags.reading]
    elif kind == "length" and place is not None:
        words = ["show", *there, "--response", str(place.response), *flags.words]
    elif place is None or not token:
        words = ["eval", *there, "--level", "response", *flags.words]
    else:
        color = {"nll": "log_prob", None: "ratio"}.get(kind, kind) or "ratio"
        words = ["show", *there, "--response", str(place.response), "--by", color]
        words += flags.words
    return shell_line(["grpo", *words]) + comment


def _there(step: Step, place: Place | None) -> list[str]:
    """The record that is worst in the step, or all of the step."""
    of_step = [] if step.key is None else ["--where", f"{step.key}=={step.number}"]
    if place is not None:
        return [place.source, "--record", str(place.record), *of_step]
    return [step.file, *of_step] if step.shares_file else [step.file]
