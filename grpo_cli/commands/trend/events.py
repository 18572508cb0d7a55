"""What happened in a run: findings that began together are one event, with its likely cause."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.check import answer as checks
from grpo_cli.commands.trend.causes import KL, Cause, cause_of
from grpo_cli.commands.trend.findings import AWAY, in_numbers, in_short
from grpo_cli.commands.trend.onsets import (
    DRIFT,
    FARTHEST,
    IMPOSSIBLE,
    LEAST_FUTURE,
    LIMIT,
    SHIFT,
    SPIKE,
    STUCK,
    TREND,
)
from grpo_cli.commands.trend.step import FAR, INFO, SURE, WARNING, Finding, Steps
from grpo_cli.commands.trend.sums import OF_SPREAD
from grpo_cli.commands.trend.watched import (
    DOWN,
    GO_BACK,
    NOT_FINITE,
    RANKS,
    SIGNED,
    UP,
    remedy,
    watch,
)
from grpo_cli.terminal.numbers import and_more, counted, record_name

_TOGETHER = 8
"""Steps after its last finding within which what goes wrong is of an event that is over."""
AT_ONCE = 3
"""The first steps of an event, in which responses or rewards change that the update follows."""
_POLICY = RANKS["gradient_norm"]
_EFFECTS = {
    **dict.fromkeys(("gradient_norm", "reward_group_std", OF_SPREAD, "reward_std"), DOWN),
    **dict.fromkeys(("groups_equal", "groups_all_0"), UP),
}
"""What becomes less, or more, because responses or rewards changed."""
UPDATE = {"ratio_p999", "ratio_mean", "ess", "clip_low", "clip_high"}
"""What becomes more with every change of the policy: of all there is, it says least."""
_FOLLOWING = {*UPDATE, "gradient_norm"}
"""What follows from responses or rewards that changed."""
_REWARDS = RANKS["groups_equal"]
"""From here on rewards and scores."""
_RESPONSES = RANKS["entropy"]
_UPDATES = RANKS["ratio_p999"]
_BY_KL = {"entropy", "nll", "gradient_norm", "loss"}
"""What a policy that moves too far changes: what is done about the KL is done about these."""
_SURENESS = watch("entropy"), watch("nll")
_NAMED, _THEN = 3, 3
"""Series of an event that its sentence names with their numbers, and of those that followed."""
_LEVELS = (SHIFT, DRIFT, SPIKE)
"""The kinds of findings whose sentence has no more than the level before and after."""
_MEASURES = {
    "nll": "entropy",
    **dict.fromkeys(UPDATE, "ratio"),
    **dict.fromkeys(("groups_equal", "reward_group_std"), "reward spread"),
}
"""Row → what measures the same thing."""
_MARKS = ":;. "
_IN_PARENTHESES = re.compile(r"^\(([^)]*)\)")
_TOKEN = r"""(?<= )(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?: \(id -?\d+\))?"""
_CLAUSE = re.compile(rf"(?:{_TOKEN}|(?![:;]|\. | \().)+")
"""The first clause of a sentence of ``grpo check``; a quoted token may have any mark."""
_DOUBT, _SAME = "entropies", "engine and trainer differ: "
_AHEAD = "the updates move the policy too far", "one update moved the policy too far"


class Checked(NamedTuple):
    """A finding of ``grpo check`` in the worst step of an event, or in its first.

    Attributes:
        finding: the finding.
        step: its step, unless the event began there.
    """

    finding: checks.Finding
    step: int | None = None

    @property
    def message(self) -> str:
        """Its message, and its record or how many records of the step it is of."""
        several = self.finding.records
        one = record_name(self.finding.record, self.finding.line)
        of = f"{several:,} records of the step" if several > 1 else one
        return f"{self.finding.message} ({of})"

    @property
    def line(self) -> str:
        """All of it, with its step if that is another, and the name of the rule."""
        when = "" if self.step is None else f"at step {self.step}: "
        return f"{when}{self.finding.code}: {self.message}"


@dataclass(frozen=True)
class Event(Answer):
    """A change in a run, and each series that shows it.

    Attributes:
        step: its first step: the first of its findings' steps.
        first: the finding that is likely the cause of the others.
        others: the findings that followed: those nearest to the cause first, and ratios last where
            responses or rewards changed.
        checked: errors and warnings of ``grpo check`` in its worst step.
        cause: what explains it; None if its numbers do not show it.
    """

    step: int
    first: Finding
    others: Sequence[Finding]
    checked: Sequence[Checked] = ()
    cause: Cause | None = None

    @property
    def findings(self) -> list[Finding]:
        """All findings by time; within a step the likely cause first."""
        every = [self.first, *self.others]
        return sorted(
            every, key=lambda one: (one.severity == INFO, one.onset, one is not self.first)
        )

    @property
    def commands(self) -> list[str]:
        """The commands for its first step, what explains it and its worst step.

        ``grpo check`` is none where it found nothing. None where records have no place.
        """
        one = self.first
        if one.command is None:
            return []
        found, cause = [one.command], one.cause or ""
        explains = bool(self.checked_there) or not cause.startswith("grpo check ")
        if cause and explains and one.command.partition("  # ")[0] != cause:
            checks = cause.startswith("grpo check ")
            what = "all findings" if checks else "arithmetic of the loss"
            found.append(f"{cause}  # {what}")
        if one.worst_command and one.worst_step != one.onset and one.kind != TREND:
            found.append(one.worst_command.replace("  # step", "  # worst at step", 1))
        return found

    @property
    def severity(self) -> str:
        """The highest severity of its findings."""
        return WARNING if any(one.severity == WARNING for one in self.findings) else INFO

    @property
    def end(self) -> int | None:
        """The first step at which all is as before; None while it lasts."""
        ends = [one.onset if one.is_single else one.end for one in self.findings]
        return None if None in ends else max(filter(None, ends), default=None)

    @property
    def lasting_onsets(self) -> list[int]:
        """The onsets that have good steps before them; [] of an event that is over, or no fault."""
        if self.end is not None:
            return []
        return [one.onset for one in self.findings if one.severity == WARNING and one.has_past]

    @property
    def summary(self) -> str:
        """What changed, what the metrics were before and are since, and its likely cause."""
        moved = f" ({'medians: ' * self._has_medians}{moved})" if (moved := self._moved) else ""
        return f"{self.title}{moved}{self.until}{self._then}{self._likely}"

    @property
    def headline(self) -> str:
        """What changed and when, and what is likely the cause."""
        return f"{self.title}{self.until}{self._likely}"

    @property
    def title(self) -> str:
        """What changed and when."""
        return f"{self._when}: {self._fact}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The likely cause, what to do, and the numbers, each with its name."""
        rows = {
            "likely cause": self.guess,
            "fix": self.fix,
            f"{'medians ' * self._has_medians}before → after"
            if "→" in self._moved
            else "value": self._moved,
            "then": self._then.removeprefix("; then "),
        }
        return [(name, text) for name, text in rows.items() if text]

    @property
    def _wrong(self) -> list[Finding]:
        """Its findings that are no mere information; all of them, where these are."""
        return [one for one in self.findings if one.severity == WARNING] or self.findings

    @property
    def _later(self) -> list[Finding]:
        return [one for one in self._wrong if one.onset > self.step + SURE]

    @property
    def _listed(self) -> list[Finding]:
        """The findings at its beginning whose numbers the words do not give already."""
        worded = self.first.kind in (IMPOSSIBLE, STUCK) or self.first.after is None
        named = [*self._later, *([self.first] if worded else [])]
        found = [one for one in self._wrong if one not in named]
        return sorted(found, key=lambda one: one is not self.first)

    @property
    def _measured(self) -> list[list[Finding]]:
        """The findings at its beginning, and what measures the same and changed, early or late."""
        found: dict[str, list[Finding]] = {measure(one): [] for one in self._listed}
        for one in (*self._listed, *self._later):
            if (known := found.get(measure(one))) is not None and (
                not known or one.kind in _LEVELS
            ):
                known.append(one)
        for each in found.values():  # of a prompt after that of the run
            each.sort(key=lambda one: one is not self.first and "/" in one.metric)
        return [*found.values()]

    @property
    def in_numbers(self) -> list[Finding]:
        """The findings that ``facts`` name or count, whose sentences have nothing more."""
        return [one for each in self._measured[:_NAMED] for one in each if one.kind in _LEVELS]

    @property
    def news(self) -> list[Checked]:
        """What ``grpo check`` found and its metrics do not say."""
        if not any(_family(one) == "mismatch" for one in self._wrong):
            return [*self.checked]
        return [one for one in self.checked if not one.finding.message.startswith(_SAME)]

    def rest_of(self, checked: Checked) -> str:
        """A line of ``checked`` without what the likely cause says already."""
        code, message = checked.finding.code, checked.message
        if checked.step is not None:
            return checked.line
        if self.guess and message.startswith(self.guess):
            rest = message[len(self.guess) :].lstrip(_MARKS)
            return f"{code}: " + _IN_PARENTHESES.sub(r"at \1", rest)
        return message if message.startswith(code) else checked.line

    @property
    def _moved(self) -> str:
        """What the metrics were before and are since."""
        return and_more([*map(_with_others, self._measured)], _NAMED)

    @property
    def _has_medians(self) -> bool:
        """Whether the numbers of ``_moved`` are medians."""
        return all(one[0].kind in (SHIFT, DRIFT, TREND) for one in self._measured[:_NAMED])

    @property
    def until(self) -> str:
        """The last step before all is as before, in words; "" while it lasts."""
        if self.end is None or self.first.is_single:
            return ""
        last = max(one.onset if one.is_single else one.through or 0 for one in self.findings)
        return f"; through step {last}"

    @property
    def _then(self) -> str:
        """Those of its metrics that changed later, one of each family."""
        first: dict[str, Finding | None] = dict.fromkeys(map(_family, self._listed))
        later = [one for one in self._later if first.setdefault(_family(one), one) is one]
        names = [f"{in_short(one)} (step {one.onset})" for one in later]
        return f"; then {and_more(names, _THEN)}" if later else ""

    @property
    def checked_there(self) -> list[Checked]:
        """What ``grpo check`` found where the event began, and may be its cause.

        A doubt of the entropies is none where the log-probs, of which they are not computed,
        changed as well. That engine and trainer differ is what the metrics say already.
        """
        rows = {row.name for row in (one.row for one in self.findings) if row is not None}
        found = [one for one in self.checked if one.step is None]
        found = [one for one in found if not one.finding.message.startswith(_SAME)]
        return [one for one in found if not ("nll" in rows and one.finding.code == _DOUBT)]

    @property
    def _when(self) -> str:
        if self.first.kind == TREND:
            return "from the first step on"
        if self.first.kind == STUCK:
            return f"from step {self.step:,} on"
        often = f" and every {self.first.period} steps since" if self.first.period else ""
        return f"step {self.step:,}{often}"

    @property
    def _fact(self) -> str:
        """What changed, in plain words: what the numbers say, or a cause that they prove."""
        if self.cause is not None and self.cause.is_certain:
            return self.cause.words
        one, row = self.first, self.first.row
        away = UP if AWAY in one.sentence else DOWN
        direction = away if one.metric == SIGNED else one.direction
        words = "" if row is None else row.meaning(direction)
        if one.kind == LIMIT and _family(one) == "mismatch":
            words = "engine and trainer differ"  # nothing says that they ever did not
            words += ", as where the engine has older weights" * (one.severity == INFO)
        if one.severity == INFO and row in _SURENESS and one.direction == DOWN:
            words = "the policy became surer of its tokens as its reward rose"
        if one.kind in (IMPOSSIBLE, STUCK) or not words:
            words = in_short(one)
        lasting = (each for each in self.others if each.kind == SHIFT and each.end is None)
        lasts = any(each.onset == one.onset and _is_of_update(each) for each in lasting)
        return words + " for one step" * (one.is_single and not lasts)

    @property
    def guess(self) -> str:
        """What may have caused it, without proof."""
        if (cause := self._explained_by) is not None:
            return "" if cause.is_certain else cause.words
        moved = self.first.metric in UPDATE and self.first.kind != IMPOSSIBLE
        return _AHEAD[self.first.is_single] if moved else ""

    @property
    def _likely(self) -> str:
        return f"; likely: {guess}" if (guess := self.guess) else ""

    @property
    def _explained_by(self) -> Cause | None:
        """Its cause, or what ``grpo check`` found where it began if that may be the reason."""
        found = next(iter(self.checked_there), None)
        if found is None or (self.cause is not None and not self.cause.has_reason):
            return self.cause
        clause = _CLAUSE.match(found.message)
        return Cause(clause[0] if clause else "", found.finding.advice, is_certain=False)

    @property
    def fix(self) -> str:
        """The usual remedy; "" for an info, or if none is known."""
        row = self.first.row
        if (cause := self._explained_by) is not None:
            return cause.fix
        if self.first.kind == IMPOSSIBLE:
            return "" if self.first.direction else NOT_FINITE
        if row is None or self.severity == INFO:
            return ""
        rises = (one.row for one in self._wrong if one.direction == UP)
        if row.name in _BY_KL and any(each and each.name == KL for each in rises):
            row = watch(KL) or row
        found = remedy(row, self.first.direction)
        return found if self.lasting_onsets else found.replace(GO_BACK, "")

    def fields(self) -> dict[str, Any]:
        """What the JSON has of it; its findings are under ``findings``."""
        return {
            "step": self.step,
            "severity": self.severity,
            "summary": self.summary,
            "metrics": [one.metric for one in (self.first, *self.others)],
            "end": self.end,
            "fix": self.fix,
            "check": [one.line for one in self.checked],
            "command": self.first.command,
        }


def events(findings: Sequence[Finding], steps: Steps) -> list[Event]:
    """The findings of a run by what they show, the earliest event first."""
    grouped: list[list[Finding]] = []
    for one in sorted(findings, key=lambda one: (one.severity == INFO, one.onset)):
        alike = [each for each in grouped if (each[0].kind == TREND) == (one.kind == TREND)]
        near = [each for each in alike if _takes_in(each, one)]
        if near:
            named = [each for each in near if _family(one) in map(_family, each)]
            (named or near)[-1].append(one)
        else:
            grouped.append([one])
    found = (_explained(_event(each), steps) for each in grouped)
    return sorted(found, key=lambda one: one.step)


def _explained(event: Event, steps: Steps) -> Event:
    """The event with its cause, whose finding is then its first."""
    cause = cause_of(event.first, event.findings, steps)
    if cause is None:
        return event
    first = cause.first or event.first
    others = [one for one in (event.first, *event.others) if one is not first]
    step = event.step if cause.first is None else cause.first.onset
    return Event(step, first, others, cause=cause)


def _takes_in(event: Sequence[Finding], one: Finding) -> bool:
    """Whether a finding is of an event: it began with it, or soon after, or is more of the same.

    While something is wrong, a slope begins within the steps that onsets are looked for in.
    """
    since = one.onset - event[-1].onset
    own = _is_of_its_own(one, event)
    if any(abs(one.onset - each.onset) <= AT_ONCE for each in (event[:1] if own else event)):
        return True  # information comes last, whatever its step
    if since < 0 or own:
        return False
    lasting = [each for each in event if each.end is None or each.end >= one.onset]
    if any(_family(each) == _family(one) for each in lasting):
        return True
    alike = any(_part(each) == _part(one) for each in lasting if not each.is_single)
    return since <= (FARTHEST if alike else _TOGETHER)


def _is_of_its_own(one: Finding, event: Sequence[Finding]) -> bool:
    """Whether a change is a level, in a part of the run that the event has not changed yet."""
    name = "" if one.row is None else one.row.name
    if one.severity == INFO or name in _EFFECTS or name in _FOLLOWING:
        return False
    if one.at_once or name == "reward_advantage_corr":  # which no policy changes
        return _family(one) not in map(_family, event)
    return one.kind == SHIFT and _part(one) not in map(_part, event)


def _event(together: Sequence[Finding]) -> Event:
    """The event of findings, with the likely cause of those at its beginning as the first.

    The order of causes, of findings within ``SURE`` steps of the beginning:

    1. what is not finite, then the engine (staleness, mismatch), then the ratios of the update, in
       the order of ``TABLE``; the ratios come after all else where responses or rewards changed,
       before any ratio was clear, since they follow from that;
    2. all else, the clearest first; of what is far beyond noise, rewards last, since they follow
       from what was sampled (a collapse that repeats itself gets equal rewards), then by step;
    3. what only becomes less because of these.

    Where a run is stuck, the responses are the cause of what the update lacks.
    """
    timed = _timed(together)
    _, begun = min((one.severity == INFO, one.onset) for one in timed)
    jumped = any(one.is_single and one.metric in UPDATE and one.onset == begun for one in timed)
    ratios = (one.onset for one in together if one.metric in UPDATE and one.is_clear)
    last = min([begun + AT_ONCE, *ratios])
    changed = any(
        _rank(one) >= _RESPONSES and one.severity != INFO and one.onset <= last for one in together
    )

    def place(one: Finding) -> tuple[bool, int, int, float, bool, int, float]:
        info, row = one.severity == INFO, one.row
        name = "" if row is None else row.name
        score = FAR if one.kind == LIMIT else one.score
        last = -min(score, FAR), _rank(one) >= _REWARDS, one.onset, -score
        if one.kind == STUCK:
            return info, -_rank(one), begun, *last
        if one.metric in UPDATE:  # of these the first to change
            return info, _POLICY + 1 if changed else RANKS["ratio_p999"], one.onset, *last
        follows = _EFFECTS.get(name) == one.direction
        return info, min(_rank(one), _POLICY) + follows, begun, *last

    near = begun + SURE * (not jumped)  # a single step has a certain date
    first = min((one for one in timed if one.onset <= near), key=place)
    others = [one for one in together if one is not first]
    others.sort(
        key=lambda one: (
            one.severity == INFO,
            changed and one.metric in _FOLLOWING,
            _rank(one),
            one.onset,
        )
    )
    causes = [
        one.onset
        for one in timed
        if one.severity != INFO
        and not (changed and one.metric in _FOLLOWING)
        and (one.is_single or not first.is_single or first.onset - one.onset > SURE)
    ]  # the step of a single value is certain, that of a level a step or two off
    return Event(min([first.onset, *causes]), first, others)  # effects are not its beginning


def _timed(together: Sequence[Finding]) -> list[Finding]:
    """The findings without levels of rewards that soon are followed by a jump of them.

    A jump has a certain date, and a policy that learns makes rewards more equal before it.
    """
    rewards = [one for one in together if _rank(one) >= _REWARDS and one.severity != INFO]
    jump = min((one.onset for one in rewards if one.at_once), default=0)
    early = [one for one in rewards if 0 < jump - one.onset <= LEAST_FUTURE and not one.is_single]
    return [one for one in together if one not in early]


def _is_of_update(finding: Finding) -> bool:
    """Whether its metric says nothing of the policy that one update leaves behind."""
    return finding.metric in _FOLLOWING or _family(finding) == "mismatch"


def _rank(finding: Finding) -> int:
    """The place in the order in which faults spread; what is no number comes before all."""
    row = finding.row
    return -1 if row is None else RANKS[row.name]


def _part(finding: Finding) -> int:
    """What a finding is of: neither, the engine, the policy and its responses, or the rewards."""
    return bisect([0, _UPDATES, _REWARDS], _rank(finding))


def _family(finding: Finding) -> str:
    """The first part of a metric's name: what the engine's mismatch is measured by is one."""
    row = finding.row
    return finding.metric if row is None else row.name.partition(".")[0]


def measure(finding: Finding) -> str:
    """What a finding's metric measures: several are of one thing, as those of each prompt are."""
    family = _family(finding).rstrip("/")
    return _MEASURES.get(family, family)


def _with_others(findings: Sequence[Finding]) -> str:
    """The first in numbers, and how many others measure the same."""
    others = len({one.metric for one in findings}) - 1
    more = f" ({counted(others, f'other {measure(findings[0])} metric')} moved too)"
    return in_numbers(findings[0]) + more * bool(others)
