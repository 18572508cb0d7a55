"""What ``grpo trend`` said of a run, and whether that is right."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from command import run

from grpo_cli import trend
from grpo_cli.commands.trend.events import events
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.step import Steps
from running.kinds import DOWN, EITHER, UP, Kind

BEFORE, EARLY = 6, 10
"""A finding may place its onset so many steps before the true one; by more than the other it is of
something else, which is not there."""
_UP = re.compile(r"\b(rose|rises?|rising|above|grew|grows|jumped|climbed|spiked)\b")
_DOWN = re.compile(r"\b(fell|falls?|falling|below|dropped|shrank|collapsed|dipped)\b")
_NAN = re.compile(r"\bnan\b|not finite|non-?finite|\binf\b|infinit", re.IGNORECASE)


@dataclass(frozen=True)
class Said:
    """One metric of one finding.

    Attributes:
        alarm: whether it is more than information.
        period: the steps after which it comes back; 0: it does not.
        sentence: what a user reads.
    """

    metric: str
    onset: int
    way: str
    kind: str
    sentence: str
    alarm: bool = True
    period: int = 0

    def covers(self, other: Said) -> bool:
        """Whether this finding tells of the onset of another."""
        later = other.onset - self.onset
        return abs(later) <= BEFORE + 1 or bool(self.period and later > 0)


@dataclass(frozen=True)
class Event:
    """Findings that are told as one: the step, and the metrics, the likely first in front."""

    step: int
    metrics: tuple[str, ...]


@dataclass
class Answer:
    """The answer about a run's first steps."""

    steps: int
    code: int
    said: list[Said] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    rows: Sequence[Mapping[str, Any]] = ()
    notes: str = ""


def ask(path: Path, steps: int, *words: str) -> Answer:
    """What the command answers about a file."""
    result = run("trend", path, "--json", *words)
    crashed = result.exception is not None and not isinstance(result.exception, SystemExit)
    if crashed:
        return Answer(steps, 70, notes=repr(result.exception))
    try:
        document = json.loads(result.stdout)
    except json.JSONDecodeError:
        return Answer(steps, result.exit_code, notes=result.stderr)
    rest = {name: value for name, value in document.items() if name != "steps"}
    said = list(dict.fromkeys(_mentions(rest)))
    events = [
        Event(one["step"], tuple(one["metrics"]))
        for one in document.get("events") or ()
        if one.get("severity") != "info"
    ]
    rows = document.get("steps") or ()
    return Answer(steps, result.exit_code, said, events, rows, result.stderr)


def ask_beginnings(path: Path, whole: int, *words: str) -> Callable[[int], Answer]:
    """Answers about a run's first steps: of the whole the command's, of others what it finds there.

    Its records are read once: what a step says does not depend on later ones.
    """
    opened: list[Steps] = []

    def ask_first(count: int) -> Answer:
        if count >= whole:
            return ask(path, count, *words)
        if not opened:
            flags = (one.strip("-").replace("-", "_") for one in words[::2])
            more = dict(zip(flags, words[1::2], strict=True))
            opened.append(trend(path, **more).steps)
        steps = opened[0][: int(np.searchsorted(opened[0].numbers, count))]
        found = findings(steps)
        said = [
            Said(
                one.metric,
                one.onset,
                one.direction if one.direction in (UP, DOWN) else _way(one.sentence),
                one.kind,
                one.sentence,
                one.severity != "info",
                one.period,
            )
            for one in found
        ]
        told = [
            Event(one.step, tuple(each.metric for each in one.findings))
            for one in events(found, steps)
            if one.severity != "info"
        ]
        rows = [{"step": one.number, **one.metrics} for one in steps]
        return Answer(count, 0, list(dict.fromkeys(said)), told, rows)

    return ask_first


def _mentions(value: Any) -> Iterator[Said]:
    """Every metric of every finding, however findings are nested."""
    if isinstance(value, list):
        for one in value:
            yield from _mentions(one)
    elif isinstance(value, dict):
        if isinstance(value.get("metric"), str) and isinstance(value.get("onset"), int):
            sentence = str(value.get("sentence", ""))
            way = value.get("direction")
            yield Said(
                value["metric"],
                value["onset"],
                way if way in (UP, DOWN) else _way(sentence),
                str(value.get("kind", "")),
                sentence,
                value.get("severity") != "info",
                int(value.get("period") or 0),
            )
        for one in value.values():
            yield from _mentions(one)


def _way(sentence: str) -> str:
    up, down = _UP.search(sentence), _DOWN.search(sentence)
    if up and down:
        return UP if up.start() < down.start() else DOWN
    return UP if up else DOWN if down else EITHER


def right(said: Said, kind: Kind, onset: int, steps: int) -> bool:
    """Whether a finding alarms, of a metric that the fault moves, in its direction, at its step."""
    sign = kind.sign_of(said.metric)
    if sign is None or not said.alarm:
        return False
    if kind.periodic:
        places = range(onset, steps, kind.periodic)
        return said.onset in places and said.way in (sign, EITHER)
    if kind.marked and kind.within <= 1:
        return said.onset == onset
    agrees = EITHER in (sign, said.way) or sign == said.way
    if kind.steady:
        return agrees and said.onset == onset
    return agrees and onset - BEFORE <= said.onset <= onset + kind.within


def names_nan(answer: Answer, onset: int) -> bool:
    """Whether the answer goes on past a step with NaN, and says so at that step."""
    if answer.code not in (0, 1) or len(answer.rows) < answer.steps - 1:
        return False
    said = any(one.onset == onset and _NAN.search(one.sentence) for one in answer.said)
    row = next((row for row in answer.rows if row.get("step") == onset), {})
    flagged = any(isinstance(v, str) and _NAN.search(v) for v in row.values())
    return said or flagged or bool(re.search(rf"step {onset}\b.*{_NAN.pattern}", answer.notes))


def moved(said: Said, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the metric went the way that the finding states, at once or by the end."""
    if said.way == EITHER:
        return True
    values = [(row.get("step"), row.get(said.metric)) for row in rows]
    known = [(s, v) for s, v in values if isinstance(v, int | float) and math.isfinite(v)]
    before = [v for s, v in known if said.onset - 10 <= s < said.onset]
    after = [v for s, v in known if s >= said.onset]
    if not before or not after:
        return True
    changes = [fmean(part) - fmean(before) for part in (after[:3], after[:10], after[-10:])]
    return any(change > 0 if said.way == UP else change < 0 for change in changes)


@dataclass
class Verdict:
    """How one run was judged.

    Attributes:
        found: whether the fault was found in time.
        delay: steps seen since the onset, when it was first found, in time or late.
        kept: whether the whole run still says it, with its period where it has one.
        false: findings of what is not there.
        opposite: findings of the right metric the wrong way.
        untrue: findings whose metric did not move as they state.
        lost: findings that a longer run takes back.
        events: what the whole run is told as; None where nothing says so.
        first: whether the first of these begins with a metric of the fault.
    """

    kind: str
    seed: int
    found: bool = False
    delay: int | None = None
    kept: bool = False
    false: list[str] = field(default_factory=list)
    opposite: list[str] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    events: int | None = None
    first: bool = False
    seconds: float = 0.0
    notes: str = ""


def found_in(answer: Answer, kind: Kind, onset: int) -> bool:
    """Whether an answer names the fault."""
    if kind.nan:
        return names_nan(answer, onset)
    return any(right(one, kind, onset, answer.steps) for one in answer.said)


AFTER = 32
"""Steps after the onset at which somebody looks again, whether a finding is still there."""


def looked(
    ask: Callable[[int], Answer], kind: Kind, onset: int, prefixes: Sequence[int]
) -> list[Answer]:
    """The answers about a run's beginnings; from the first that is right on, about few."""
    answers, found = list[Answer](), False
    for count in prefixes:
        if not found or kind.sound or count >= onset + AFTER:
            answers.append(ask(count))
            found = found or found_in(answers[-1], kind, onset)
    return answers


def judge(kind: Kind, seed: int, onset: int, answers: Sequence[Answer]) -> Verdict:
    """The verdict on a run from the answers about its beginnings, the whole run last."""
    verdict, last = Verdict(kind.name, seed), answers[-1]
    verdict.notes = last.notes if last.code not in (0, 1) else ""
    for answer in answers:
        hit = found_in(answer, kind, onset)
        if hit and verdict.delay is None and not kind.sound:
            verdict.delay = answer.steps - onset
        periods = {one.period for one in answer.said}
        verdict.kept = hit and not kind.sound and (not kind.periodic or kind.periodic in periods)
        for one in answer.said:
            words = f"{answer.steps}: {one.sentence}"
            sign = kind.sign_of(one.metric)
            early = one.onset < onset - EARLY or answer.steps <= onset
            if (early or (kind.sound and sign is None)) and one.alarm:
                verdict.false.append(words)
            against = sign in (UP, DOWN) and one.way in (UP, DOWN) and sign != one.way
            if against and not early and not kind.sound and one.kind != "spike":
                verdict.opposite.append(words)
            if not moved(one, answer.rows):
                verdict.untrue.append(words)
            if not any(other.covers(one) for other in last.said):
                verdict.lost.append(words)
    if last.events:
        verdict.events = len(last.events)
        head = last.events[0]
        verdict.first = kind.sign_of(head.metrics[0]) is not None and head.step >= onset - BEFORE
    verdict.found = verdict.delay is not None and verdict.delay <= kind.within
    return verdict
