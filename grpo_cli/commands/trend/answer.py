"""What happened in a run, read from its records or a trainer's log, and what check says of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.answer import Finding as CheckFinding
from grpo_cli.commands.check.run import check
from grpo_cli.commands.solving import STD_EPS
from grpo_cli.commands.trend.causes import (
    Cause,
    at_one_place,
    at_one_token,
    old_is_off,
    other_rewards,
)
from grpo_cli.commands.trend.comparison import Trend, compare_log
from grpo_cli.commands.trend.events import UPDATE, Checked, Event, events
from grpo_cli.commands.trend.findings import findings, first_place, level_of
from grpo_cli.commands.trend.logs import Log
from grpo_cli.commands.trend.metrics import LOSS_NOISE, RECORDED_LOSS, worst_kind
from grpo_cli.commands.trend.onsets import LEAST_FUTURE, PAST, SHIFT, STUCK
from grpo_cli.commands.trend.origins import StepSource, of_name
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import WARNING, Finding, Flags, Place, Step, Steps
from grpo_cli.commands.trend.verdict import Coverage, verdict
from grpo_cli.commands.trend.watched import UP
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.terminal.numbers import counted, shell_line


def trend_of(
    run: Run | None,
    steps: Steps,
    flags: Flags,
    *,
    columns: Sequence[str] | None = None,
    log: Log | None = None,
    framework: str | None = None,
) -> Trend:
    """What happened in a run.

    Args:
        run: the run, read; None where the steps are of a log.
        steps: its steps.
        flags: what it was read with, for the commands that findings name.
        columns: the metrics that were asked for; None for those shown unasked.
        log: what a trainer logged.
        framework: whose names the log has.
    """
    ungrouped = None if run is None else run.ungrouped
    found = findings(steps, flags, ungrouped)
    happened = [_with_flag(event, ungrouped) for event in events(found, steps)]
    variant, signatures, compared = "", list[str](), None
    losses = [] if run is None else [*differing_losses(steps, run)]
    covered = Coverage(steps, columns, run, losses)
    if run is not None:
        variant, signatures = run.plan.variant, [*run.signatures]
        happened += _left_objective(steps, variant, flags)
        happened = with_checks(sorted(happened, key=lambda one: one.step), steps, run)
        compared = compare_log(framework, log, run.logged, steps)
    sentence = verdict(steps, happened, covered)
    found = sorted((one for event in happened for one in event.findings), key=lambda one: one.onset)
    return Trend(variant, signatures, steps, found, happened, sentence, covered, compared)


def _with_flag(event: Event, ungrouped: str | None) -> Event:
    """The event; where nothing is learnt because records are not grouped, the flag is its fix."""
    if ungrouped is None or event.first.kind != STUCK:
        return event
    fix = ungrouped.partition("; ")[2]
    return replace(event, cause=Cause("", fix, is_certain=False, first=event.first))


# ---- the losses that the records have -----------------------------------------------------------

_LEAST_SHARE, _SMALL = 0.005, 1e-4
"""The share of the run's largest loss by which a recorded one is another objective's (rounding in
half precision is less), and that of a step's loss from which on another ``std_eps`` shows."""
_EXPLAINS = 0.1
"""The share of a difference that may be left."""
_MOSTLY, _TIMES = 0.75, 10.0
"""The share of the steps at which a loss that left its objective differs, and how many times as far
as ever before its first differences are."""
_EXACT = 1e-6
"""The share of a loss below which a difference is rounding in single precision."""
_FIX_LOSS = (
    "look for a setting of the loss, or a column of the records, that changed at that step; "
    "grpo verify names it if it can"
)
_FIX_CONVENTION = (
    "the ratios moved farther from 1 at that step, where conventions differ that agreed before: "
    "the loss need not have changed. grpo verify names the convention if it can; another version "
    "of the variant may have it"
)
_FARTHER = 2.0
"""How many times as far from 1 as before ratios are that show another convention."""


def _losses(steps: Steps) -> tuple[F64, F64] | None:
    """[S] the recorded losses and the evaluated ones; None where no step has both."""
    recorded, own = (steps.metrics.get(name) for name in (RECORDED_LOSS.name, "loss"))
    known = recorded is not None and own is not None and not np.isnan(recorded - own).all()
    return (recorded, own) if known else None  # type: ignore[return-value]


def differing_losses(steps: Steps, run: Run) -> Iterator[str]:
    """That the recorded losses are another objective's, or of another ``std_eps``.

    Small differences, as of half precision, are named only where a usual ``std_eps`` explains them.
    """
    if (losses := _losses(steps)) is None:
        return
    recorded, own = losses
    distance, count = np.abs(recorded - own), int(np.count_nonzero(~np.isnan(recorded - own)))
    least = max(_LEAST_SHARE * float(np.nanmax(np.abs(own))), LOSS_NOISE)
    differs, eps, by = distance > least, None, f"{least:.2g}"
    if not differs.any():
        differs, by = distance > _SMALL * np.abs(own), f"{_SMALL:.2%}"
        at = int(np.nanargmax(distance))
        if 2 * differs.sum() <= count or (eps := _std_eps(run, steps[at], recorded[at])) is None:
            return
    at = int(differs.argmax())
    values = " against ".join(_distinct(float(recorded[at]), float(own[at])))
    fix = (
        "grpo verify names what differs"
        if run.plan.asked
        else "name yours with -v, or ask grpo verify"
    )
    yield (
        f"the records' loss differs from {run.plan.variant}'s by more than {by} at "
        f"{differs.sum():,} of {counted(count, 'step')} (first at step {steps.numbers[at]:,}, "
        f"{values}): "
        + (fix if eps is None else f"std_eps {eps:g} explains it (-p std_eps={eps:g})")
    )


def _left_objective(steps: Steps, variant: str, flags: Flags) -> Iterator[Event]:
    """The step from which on the recorded loss, equal to the evaluated one before, differs."""
    if (losses := _losses(steps)) is None:
        return
    places = np.flatnonzero(~np.isnan(losses[0] - losses[1]))
    recorded, own = (one[places] for one in losses)
    distance, sizes = np.abs(recorded - own), np.abs(own)
    for least in (max(share * float(sizes.max()), LOSS_NOISE) for share in (_SMALL, _LEAST_SHARE)):
        at = int((distance > least).argmax())
        before, since = distance[:at], distance[at:]
        would_show = int(np.count_nonzero(sizes[:at] > least))
        if min(would_show, len(since)) < LEAST_FUTURE or (since > least).mean() < _MOSTLY:
            continue
        if level_of(since[:LEAST_FUTURE]) > _TIMES * before.max():
            first, seen, worst = places[
                [at, at + LEAST_FUTURE - 1, at + int(since.argmax())]
            ].tolist()
            shares = (one.mean() / sizes.mean() for one in (before, since))  # of the mean |loss|
            equal, off = (f"{100 * share:.3g}%" if share > _EXACT else "0" for share in shares)
            words = (
                f"the recorded loss no longer follows {variant} (off by {equal} at "
                f"{counted(at, 'step')} before, by {off} since)"
            )
            found = Finding(
                RECORDED_LOSS.name,
                SHIFT,
                steps.numbers[first],
                f"recorded_loss differs from loss from step {steps.numbers[first]} on: "
                f"{' against '.join(_distinct(float(recorded[at]), float(own[at])))} at that step",
                _verify(steps[first], flags),
                worst_step=steps.numbers[worst],
                worst=None,
                direction=UP,
                seen=steps.numbers[seen],
            )
            fix = _FIX_CONVENTION if _ratios_moved(steps, first) else _FIX_LOSS
            yield Event(found.onset, found, [], cause=Cause(words, fix))
            return


def _ratios_moved(steps: Steps, at: int) -> bool:
    """Whether the largest ratios are much farther from 1 since a step than before it."""
    ratios = steps.series_of("ratio_p999")
    if ratios is None:
        return False
    before, since = (level_of(np.abs(np.log(one))) for one in (ratios[:at], ratios[at:]))
    return since > _FARTHER * before


def _verify(step: Step, flags: Flags) -> str | None:
    """The command that compares the losses from a step on; None for data in memory."""
    since = [] if step.key is None else ["--where", f"{step.key}>={step.number}"]
    return shell_line(["grpo", "verify", step.file, *since, *flags.words]) if step.file else None


def _std_eps(run: Run, step: Step, loss: float) -> float | None:
    """The usual ``std_eps`` with which the loss of a step is this; None where none gives it."""
    own, off = run.plan.values.get("std_eps"), abs(loss - (step.metrics["loss"] or 0.0))
    for eps in STD_EPS if own is not None and run.reader.on is None else ():
        flags = {**run.plan.flags, "std_eps": eps}
        plan = replace(run.plan, flags=flags)
        reader = of_steps(run.reader, [step], run.step_source)
        with suppress(InputError):
            found = Run(reader, plan, run.step_source, one_run=True).read()
            value = float(found.metrics["loss"][found.numbers.index(step.number)])
            if abs(loss - value) <= _EXPLAINS * off:
                return eps
    return None


def _distinct(first: float, second: float) -> tuple[str, str]:
    """Two numbers with 4 digits, or one more than show that they differ."""
    digits = (n for n in range(4, 17) if f"{first:.{n - 1}g}" != f"{second:.{n - 1}g}")
    least = next(digits, 17)
    return f"{first:.{least}g}", f"{second:.{least}g}"


# ---- what ``grpo check`` names in the worst record of the first events --------------------------

_MOST, _BEFORE = 2, 4
"""Events whose records are read again, and steps before them."""
_REWARDS, _OFF = ("reward_mean", "reward_std", "reward_group_std"), 2
"""What shows other rewards, and how far from its date the steps are whose rewards are compared."""
_OF_SEVERAL = ("singleton-group", "reference", "no-scores")
"""Codes that need the other records of the step, or of the run."""


def of_steps(reader: Reader, steps: Sequence[Step], step_source: StepSource) -> Reader:
    """A reader of the same files that reads only the records of some steps."""
    numbers = [one.number for one in steps]
    keys = dict.fromkeys([*(one.key for one in steps), *step_source.fields])
    if len(keys) > 1 and None in keys:
        return reader
    first, *others = keys
    if first is not None:
        return reader.only({first: numbers}, others=[one for one in others if one is not None])
    files: dict[str, int | None] = dict(step_source.files or ()) or {
        path: of_name(path) for path in reader.paths
    }
    return reader.only({}, [path for path, number in files.items() if number in numbers])


def with_checks(events: Sequence[Event], steps: Steps, run: Run) -> list[Event]:
    """The events, the first two that are wrong with what ``grpo check`` names in their records."""
    wrong = [one for one in events if one.severity == WARNING][:_MOST]
    if run.reader.on is not None:
        return [*events]
    return [_checked(one, steps, run) if one in wrong else one for one in events]


def _checked(event: Event, steps: Steps, run: Run) -> Event:
    """The event with what its records say of it."""
    at, known = steps.numbers.index(event.first.onset), event.cause
    explained = "" if known is None else known.explains
    checked = [one for one in _named_in(event, steps, run) if one.finding.code != explained]
    event = replace(event, checked=checked)
    if event.first.metric in _REWARDS:  # a level is dated a step or two off
        sides = steps[at + _OFF : at + _OFF + 1], steps[max(at - _OFF, 0) : at][:1]
        if all(map(len, sides)):
            readers = (of_steps(run.reader, one, run.step_source) for one in sides)
            known = other_rewards(*readers) or known
            event = replace(event, cause=known)
    if (known is not None and not known.has_reason) or at == 0:
        return event
    now, before = (of_steps(run.reader, [steps[one]], run.step_source) for one in (at, at - 1))
    if worst_kind(event.first.metric) == "mismatch" and (cause := old_is_off(now)):
        return replace(event, cause=cause)
    if event.checked_there:
        return event
    if event.first.is_single and event.first.metric in UPDATE:
        past = (steps[one].worst.get("ratio") for one in range(max(at - PAST, 0), at))
        usual = max((place.value for place in past if place is not None), default=math.inf)
        known = at_one_place(now, run.plan, usual) or known
    return replace(event, cause=at_one_token([event.first, *event.others], now, before) or known)


def _named_in(event: Event, steps: Steps, run: Run) -> list[Checked]:
    """The errors and warnings of ``grpo check`` in the worst step of an event, one of a code.

    Each is of the record that the commands name there, or of all records together; or the event's
    first step has it, and the four before lack it. What the event's first step lacks is a
    consequence, and has the worst step before it.
    """
    findings = (event.first, *event.others)
    pointed = next((one for one in findings if worst_kind(one.metric)), None)
    if pointed is None:
        return []
    wrong_in = cache(lambda number: _wrong_in(number, steps, run))
    worst, onset = pointed.worst_step, event.first.onset
    at_worst = _of_each_code(wrong_in(worst), pointed.worst)
    if not at_worst:
        return []
    at_onset = _of_each_code(wrong_in(onset), first_place(event.first, steps))
    elsewhere = {code for code, row in at_worst.items() if not _is_at(row, pointed.worst)}
    new, at = elsewhere & at_onset.keys(), steps.numbers.index(onset)
    if at == 0:  # nothing says that it is new
        new = set()
    for number in steps.numbers[max(at - _BEFORE, 0) : at] if new else ():
        new -= {row.code for row in wrong_in(number)}
    return [
        Checked(at_onset[code]) if code in at_onset else Checked(row, worst)
        for code, row in at_worst.items()
        if code not in elsewhere - new
    ]


def _wrong_in(number: int, steps: Steps, run: Run) -> list[CheckFinding]:
    """The errors and warnings of a step; none where a record cannot be read."""
    reader = of_steps(run.reader, [steps[steps.numbers.index(number)]], run.step_source)
    try:
        found = check(reader, limit=0).findings
    except InputError:
        return []
    return [row for row in found if row.severity != "info" and row.code not in _OF_SEVERAL]


def _of_each_code(wrong: Sequence[CheckFinding], place: Place | None) -> dict[str, CheckFinding]:
    """The first finding of each code; if there is one at a place, the first of these."""
    found = {row.code: row for row in reversed(wrong)}
    return found | {row.code: row for row in reversed(wrong) if _is_at(row, place)}


def _is_at(row: CheckFinding, place: Place | None) -> bool:
    """Whether a finding is of the record at a place, or of several records together."""
    return row.records > 1 or (place is not None and row.record == place.record)
