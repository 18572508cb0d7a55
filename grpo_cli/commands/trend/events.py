"""What happened in a run: findings that began together are one event, with its likely cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.coverage import Coverage
from grpo_cli.commands.trend.detectors import DRIFT, IMPOSSIBLE, LIMIT, SPIKE, STUCK
from grpo_cli.commands.trend.findings import AWAY
from grpo_cli.commands.trend.onsets import FARTHEST, mean_change
from grpo_cli.commands.trend.step import INFO, WARNING, Finding, Steps
from grpo_cli.commands.trend.watched import (
    AHEAD,
    DOWN,
    NOT_FINITE,
    RANKS,
    UP,
    Watch,
    meaning,
    watch,
    watch_logged,
)
from grpo_cli.terminal.numbers import brief

_TOGETHER = 8
"""Steps after its last finding within which what goes wrong is of an event that is over."""
_AT_ONCE = 3
"""The first steps of an event; its likely cause began in one of them."""
_SURE = 1
"""Onsets that differ by no more steps are taken to be one."""
_POLICY = RANKS["gradient_norm"]
_EFFECTS = {"gradient_norm", "reward_group_std"}
"""What becomes less because responses or rewards changed."""
_UPDATE = {"ratio_p999", "ratio_mean", "ess", "clip_low", "clip_high"}
"""What becomes more with every change of the policy: of all there is, it says least."""
_RESPONSES = RANKS["entropy"]
KL = "kl_k3"
_BY_KL = {"entropy", "nll", "gradient_norm", "loss"}
"""What a policy that moves too far changes: what is done about the KL is done about these."""
_LENGTH = "length_mean"
_AHEAD, _AND_KL = "updates moved the policy too far", ", and away from the reference"
_REWARD = "reward_mean"
_IF_FALLS = "if entropy falls, "
_TOGETHER_ROSE = "reward and length rise together"
_LOOK = (
    "look at what rewards length (reward_length_corr; read the longest responses), then cap or "
    "penalise it"
)
_LEAST_GAIN, _AROUND, _LEAST_SIDE = 4.0, 20, 5
"""Standard errors by which the reward rose; the steps before and after that are compared, at most
and at least."""
_NAMED = 4
"""Series of an event that its sentence names."""
_CLAUSE = re.compile(r"[:;]| \(|, as if ")
"""What ends the first clause of a sentence of ``grpo check``."""


@dataclass(frozen=True)
class Event(Answer):
    """Something that happened in a run, and each series that shows it.

    Attributes:
        step: where it began.
        first: the finding that is likely the cause of the others.
        others: the findings that followed: those nearest to the cause first, and ratios last where
            responses or rewards changed.
        check: what ``grpo check`` names in its worst record, an error or a warning each.
        gain: the reward and the length before and after, where both rose; else "".
    """

    step: int
    first: Finding
    others: Sequence[Finding]
    check: Sequence[str] = ()
    gain: str = ""

    @property
    def findings(self) -> list[Finding]:
        """All of them, the likely cause first."""
        return [self.first, *self.others]

    @property
    def longest(self) -> str:
        """The command that shows the longest response, where reward and length rose; else ""."""
        found = (one.command for one in self.findings if self.gain and _is_longer(one))
        return next(found, None) or ""

    @property
    def severity(self) -> str:
        """The gravest of its findings."""
        return WARNING if any(one.severity == WARNING for one in self.findings) else INFO

    @property
    def end(self) -> int | None:
        """The step from which on all is as before; None while it lasts."""
        ends = [one.onset if _is_single(one) else one.end for one in self.findings]
        return None if None in ends else max(filter(None, ends), default=None)

    @property
    def summary(self) -> str:
        """What happened, in a clause: "temperature: mismatch.k3 rose at step 30; then ess fell".

        What ``grpo check`` names in its worst record comes first.
        """
        cause = f"{', '.join(self.codes)}: " if self.codes else ""
        cause = cause or (f"{_TOGETHER_ROSE}: " if self.gain else "")
        last = "" if self.end is None or _is_single(self.first) else f", until step {self.end}"
        others = [one for one in self.others if one.severity == WARNING]
        others.sort(key=lambda one: max(one.onset, self.step))  # "then": in their order
        later = [one for one in others if one.onset > self.step]
        before = [one for one in others if one.onset < self.step - _SURE]
        together = _listed([one for one in others if one not in (*later, *before)])
        follows = f"; before it, at step {before[0].onset}, {_listed(before)}" if before else ""
        follows += f"; at the same time {together}" if together else ""
        follows += f"; then {_listed(later)}" if later else ""
        often = f" and every {self.first.period} steps since" if self.first.period else ""
        since = f"from step {self.step} on" if self.first.kind == STUCK else f"at step {self.step}"
        return f"{cause}{_in_short(self.first)} {since}{often}{last}{follows}"

    @property
    def codes(self) -> list[str]:
        """What ``grpo check`` found in the worst record, where the event began."""
        found = (one.partition(":")[0] for one in self.check if not one.startswith("at step "))
        return [*dict.fromkeys(found)]

    @property
    def heading(self) -> str:
        """What happened, in plain words, with its step."""
        one, row = self.first, _row(self.first)
        words = "" if row is None else meaning(row, one.direction)
        lasting = row is not None and row.fix == AHEAD and one.kind != SPIKE
        if one.kind in (IMPOSSIBLE, STUCK) or not words:
            words = _in_short(one)
        elif lasting:
            words = _AHEAD + (_AND_KL if self._has_kl else "")
        if self._cause:
            words = _CLAUSE.split(self._cause)[0]
        elif self.gain:
            words = _TOGETHER_ROSE
        return f"Step {self.step:,}: {words}{' for one step' if _is_single(one) else ''}"

    @property
    def _cause(self) -> str:
        """What ``grpo check`` says of its worst record, at the step where it began; or ""."""
        named = (one for one in self.check if not one.startswith("at step "))
        return next(named, "").partition(": ")[2]

    @property
    def fix(self) -> str:
        """What is usually done about it; nothing where it is information alone, or none is known.

        What is done about lengths is so where they grow, whatever the KL does.
        """
        row, falls = _row(self.first), self.first.direction == DOWN
        if self._cause:
            return f"look at what grpo check found: {self._cause}"
        if self.first.kind == IMPOSSIBLE:
            return "" if self.first.direction else NOT_FINITE
        if self.gain:
            kl = watch(KL) if self._has_kl else None
            about_kl = "" if kl is None else f"; {kl.fix}"
            return f"{_TOGETHER_ROSE} ({self.gain}): {_LOOK}{about_kl}"
        shrinks = row is not None and row.name == _LENGTH and falls
        if row is not None and (row.name in _BY_KL or shrinks) and self._has_kl:
            row = watch(KL)
        elif shrinks:
            return ""
        if row is None or self.severity == INFO:
            return ""
        fall, either, rise = row.fix.partition("; if it rises, ")
        if not either or not self.first.direction or not fall.startswith(_IF_FALLS):
            return row.fix
        return fall.removeprefix(_IF_FALLS) if falls else rise

    @property
    def _has_kl(self) -> bool:
        """Whether the policy moved away from the reference as well."""
        found = (one for one in self.findings if one.severity == WARNING and one.direction == UP)
        return any(row is not None and row.name == KL for row in map(_row, found))

    def fields(self) -> dict[str, Any]:
        """What the JSON has of it; its findings are under ``findings``."""
        return {
            "step": self.step,
            "severity": self.severity,
            "summary": self.summary,
            "metrics": [one.metric for one in self.findings],
            "end": self.end,
            "fix": self.fix,
            "check": [*self.check],
            "command": self.first.command,
        }


def events(findings: Sequence[Finding], steps: Steps) -> list[Event]:
    """The findings of a run by what they show, the earliest event first."""
    grouped: list[list[Finding]] = []
    for one in sorted(findings, key=lambda one: (one.severity == INFO, one.onset)):
        near = [each for each in grouped if 0 <= one.onset - each[-1].onset <= _reach(each, one)]
        if near:
            near[-1].append(one)
        else:
            grouped.append([one])
    found = [replace(one, gain=_gain(one, steps)) for one in map(_event, grouped)]
    return sorted(found, key=lambda one: one.step)


def _gain(event: Event, steps: Steps) -> str:
    """The medians of the reward and the length on both sides of an event in which both rose."""
    longer = next((one.metric for one in event.findings if _is_longer(one)), None)
    rewards = (name for name in steps.metrics if (row := steps.watch(name)) and row.name == _REWARD)
    if longer is None or (reward := next(rewards, None)) is None:
        return ""
    at = steps.numbers.index(event.step)
    parts = []
    for name in (reward, longer):
        values = steps.metrics[name]
        sides = [values[max(at - _AROUND, 0) : at], values[at : at + _AROUND]]
        before, after = (side[~np.isnan(side)] for side in sides)
        if min(len(before), len(after)) < _LEAST_SIDE:
            return ""
        change, error = mean_change(before, after)
        if not change > _LEAST_GAIN * error:
            return ""
        parts.append(f"{name} {brief(np.median(before))} → {brief(np.median(after))}")
    return ", ".join(parts)


def _is_longer(finding: Finding) -> bool:
    row = _row(finding)
    return row is not None and row.name == _LENGTH and finding.direction == UP


def _reach(event: Sequence[Finding], one: Finding) -> int:
    """Steps after an event's last finding within which another follows from it.

    While something is wrong, a slope begins within the steps that onsets are looked for in.
    """
    lasts = any(each.end is None or each.end >= one.onset for each in event if not _is_single(each))
    return FARTHEST if lasts else _TOGETHER


def _event(together: Sequence[Finding]) -> Event:
    """The event of findings, with the clearest of those at its beginning as the likely first.

    What engine and update do comes before what it does to the policy and its responses, which are
    equal in this, and these before what follows from them. Where a run is stuck, the responses are
    the cause of what the update lacks. Where responses or rewards changed at once, the ratios of
    the update follow from that.
    """
    begun = min(one.onset for one in together)
    at_once = [one for one in together if one.onset <= begun + _AT_ONCE]
    changed = any(_rank(one) >= _RESPONSES and one.severity != INFO for one in at_once)

    def place(one: Finding) -> tuple[bool, int, int, float]:
        info, row = one.severity == INFO, _row(one)
        if one.kind == STUCK:
            return info, -_rank(one), begun, -one.score
        if one.metric in _UPDATE:  # of these the first to change
            return info, _POLICY + 1 if changed else RANKS["ratio_p999"], one.onset, -one.score
        falls = row is not None and row.name in _EFFECTS and one.direction == DOWN
        return info, min(_rank(one), _POLICY) + falls, begun, -one.score

    first = min(at_once, key=place)
    others = sorted(
        (one for one in together if one is not first),
        key=lambda one: (
            one.severity == INFO,
            changed and one.metric in {*_UPDATE, "gradient_norm"},
            _rank(one),
            one.onset,
        ),
    )
    return Event(first.onset, first, others)


def _rank(finding: Finding) -> int:
    """The place in the order in which faults spread; what is no number comes before all."""
    row = _row(finding)
    return -1 if row is None else RANKS[row.name]


def _row(finding: Finding) -> Watch | None:
    """How the metric is watched, of records or of a log."""
    return watch(finding.metric) or watch_logged(finding.metric)


def _listed(findings: Sequence[Finding]) -> str:
    """The first of them in short, and how many more there are; what repeats is said once."""
    clauses = [*dict.fromkeys(map(_in_short, findings))]
    count = sum(_in_short(one) in clauses[_NAMED:] for one in findings)
    more = f" and {count} more finding{'s' if count > 1 else ''}" if count else ""
    return ", ".join(clauses[:_NAMED]) + more


def _is_single(finding: Finding) -> bool:
    return finding.kind == SPIKE and not finding.period


_VERBS = {
    SPIKE: "jumped",
    LIMIT: "passed its limit",
    IMPOSSIBLE: "has an impossible value",
}


def _in_short(finding: Finding) -> str:
    """A finding's metric and what it did."""
    down = finding.direction == DOWN
    if AWAY in finding.sentence:
        return f"{finding.metric} {AWAY}"
    if not finding.direction or finding.score == 0.0:
        return f"{finding.metric} is not finite"
    if finding.kind == STUCK and (row := _row(finding)) is not None:
        return f"{finding.metric} is {row.stuck:g}"
    moved = ("began to fall" if down else "began to rise") if finding.kind == DRIFT else None
    moved = "dropped" if down and finding.kind == SPIKE else moved
    moved = moved or _VERBS.get(finding.kind, "fell" if down else "rose")
    return f"{finding.metric} {moved}"


def main_event(found: Sequence[Event]) -> Event | None:
    """The first that lasts of what went wrong, or else the first; None where nothing did."""
    wrong = [one for one in found if one.severity == WARNING]
    return next((one for one in wrong if one.end is None), wrong[0] if wrong else None)


def verdict(steps: Steps, found: Sequence[Event], covered: Coverage) -> str:
    """One sentence about a run: what happened first, and how much else; or that nothing did."""
    wrong = [one for one in found if one.severity == WARNING]
    first = main_event(found)
    if first is None:
        return covered.verdict
    rest = len(wrong) - 1
    more = f" ({rest} other event{'' if rest == 1 else 's'})" if rest else ""
    return f"{first.summary}{more}; {len(steps):,} steps"
