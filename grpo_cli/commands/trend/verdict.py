"""The verdict on a run, and what it is based on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from grpo_cli.commands.trend.causes import EQUAL_COLUMNS
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.limits import EARLIEST
from grpo_cli.commands.trend.metrics import ALL, OBJECTIVE
from grpo_cli.commands.trend.onsets import LEAST, LEAST_PAST, mean_change
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import WARNING, Steps
from grpo_cli.commands.trend.watched import PRACTICE, Limit
from grpo_cli.terminal.numbers import and_more, brief, counted

_LISTED = 4
"""Steps that are named of those at which a limit is passed."""
_OTHERS = 3
"""Events after the first that the verdict names."""
_NAMED = 8
"""Series of a log that are named though they are not watched."""

_MAIN = ("kl_k3", "entropy", "nll", "reward_mean", "length_mean")
"""What a run is first looked at for."""
_TENTH, _MOVED, _LEAST_MOVED = 10, 5.0, 0.1
"""The part of a run at either end, and the standard errors and share by which their means differ
where a metric has moved, which it may do all along, without an onset."""


def tenth(count: int) -> int:
    """The steps of a run's first and last tenth, at least four."""
    return max(count // _TENTH, 4)


def moves(steps: Steps) -> Iterator[str]:
    """The main metrics whose means differ between the first and the last tenth of the steps."""
    for name, column in steps.metrics.items():
        if (row := steps.watch(name)) is None or row.name not in _MAIN:
            continue
        values = column[~np.isnan(column)]
        if len(values) < LEAST:
            continue
        size = tenth(len(values))
        first, last = values[:size], values[-size:]
        begun, ended = float(first.mean()), float(last.mean())
        change, error = mean_change(first, last)
        if abs(change) > max(_MOVED * error, _LEAST_MOVED * max(abs(begun), abs(ended))):
            yield f"{name} {brief(begun)} → {brief(ended)}"


def _passed(name: str, limit: Limit, steps: Steps) -> str:
    """The steps at which a metric passed a published limit, in words; "" where none did."""
    values = steps.metrics[name]
    passed = np.flatnonzero(values > limit.bound if limit.above else values < limit.bound)
    numbers = [f"{steps.numbers[at]:,}" for at in passed[:_LISTED].tolist()]
    named = ", ".join([*numbers, *["…"] * (len(passed) > _LISTED)])
    at = f"{counted(len(passed), 'step')} ({named})"
    return f"{name} passed {limit.bound:g} at {at}" if numbers else ""


class Coverage:
    """What a verdict about a run is based on.

    Args:
        steps: by number.
        fields: the columns that were asked for; None for those that are shown unasked.
        run: whose steps they are; None of a log.
        losses: sentences on the losses that the records have.
    """

    def __init__(
        self,
        steps: Steps,
        fields: Collection[str] | None,
        run: Run | None,
        losses: Sequence[str] = (),
    ) -> None:
        missing = {} if run is None else run.missing
        on_policy = run is not None and not run.moved
        counts = {name: np.count_nonzero(~np.isnan(each)) for name, each in steps.metrics.items()}
        computed = [] if steps.logged else [*ALL]
        assumed = {
            one.name for one in computed if on_policy and one.worst == "ratio" and counts[one.name]
        }
        watched = {name: row for name in counts if (row := steps.watch(name)) is not None}
        self._run, self.steps = steps, len(steps)
        self.ungrouped = None if run is None else run.ungrouped
        self._losses = losses
        known = {name for name, count in counts.items() if count and name not in assumed}
        rows = {name: row for name, row in watched.items() if name in known}
        tested = {name for name, row in rows.items() if row.is_compared}
        long = {name for name in tested if counts[name] >= LEAST}
        limited = {name for name, row in rows.items() if row.limits}
        self.watched = len(long)
        self._why = {
            "shown but not judged": len(known - tested - limited),
            f"with values at fewer than {LEAST} steps": len(tested - long),
            "not judged without log_probs_old": len(assumed),
        }
        published = {
            name: [one for one in row.limits if one.source != PRACTICE]
            for name, row in watched.items()
        }
        self._limited = any(counts[name] for name, limits in published.items() if limits)
        self._passed = [
            passed
            for name, limits in published.items()
            for limit in limits
            if (passed := _passed(name, limit, steps))
        ]
        self._equal = [
            words
            for name, (value, words, _) in EQUAL_COLUMNS.items()
            if not steps.logged and not (on_policy and name == "ess") and counts.get(name)
            if (steps.metrics[name][~np.isnan(steps.metrics[name])] == value).all()
        ]
        self._unknown = [name for name in counts if steps.logged and name not in watched]
        self._missing: dict[str, list[str]] = {}
        columns = ", ".join(dict.fromkeys(one.path.rpartition(".")[2] for one in missing.values()))
        for one in computed if steps else ():
            asked = one.usual if fields is None else one.name in fields
            if asked and not counts[one.name]:
                needs = columns if columns and one.needs == OBJECTIVE else one.needs
                self._missing.setdefault(needs, []).append(one.name)

    def verdict(self, moved: Sequence[Event]) -> list[str]:
        """The sentences for a run in which nothing went wrong; ``moved``: what changed."""
        limits = ["no limit of the frameworks' documentation is passed"] if self._limited else []
        limits = [", ".join(self._passed)] if self._passed else limits
        limits = [*self._losses, *limits]
        if self.steps < LEAST:
            are = f"there {'is' if self.steps == 1 else 'are'} {self.steps}"
            return [f"too few steps: shifts and drifts need {LEAST} steps, {are}", *limits]
        if not self.watched and self._unknown:
            return ["no series is watched, so grpo looks for no change", *limits]
        if not self.watched:
            return [f"no series has values at {LEAST} steps, so no change can be found", *limits]
        series = f"{self.watched} series over {self.steps:,} steps"
        why = ", ".join(
            f"{count} more {'is' if count == 1 else 'are'} {words}"
            for words, count in self._why.items()
            if count
        )
        series += f" ({why})" if why else ""
        ends, size = ", ".join(moves(self._run)), tenth(self.steps)
        first, all_from = (self._run.numbers[at] for at in (EARLIEST, LEAST_PAST))
        return [
            f"no fault found in {series}",
            *(one.summary for one in moved),
            *limits,
            f"jumps are judged from step {first:,} on, other changes from step {all_from:,} on",
            *([f"means, first {size} → last {size} steps: {ends}"] if ends else []),
        ]

    @property
    def gaps(self) -> list[str]:
        """A sentence for the series that were not computed, and one for those that say nothing."""
        sentences = []
        if self._missing:
            reasons = (
                f"{', '.join(names)} ({'needs' if len(names) == 1 else 'need'} {what})"
                for what, names in self._missing.items()
            )
            sentences.append(f"not computed: {'; '.join(reasons)}")
        if self._unknown:
            named = and_more(self._unknown, _NAMED)
            sentences.append(f"not watched, because no rule says which changes are bad: {named}")
        return sentences + [f"{words} of all steps" for words in self._equal]


def main_event(found: Sequence[Event]) -> Event | None:
    """The first that lasts of what went wrong, or else the first; None where nothing did.

    What goes one way from the first step on, or is beyond a limit in the first steps, is it only
    where nothing else lasts.
    """
    wrong = [one for one in found if one.severity == WARNING]
    lasting = [one for one in wrong if one.end is None]
    lasting.sort(key=lambda one: not one.first.has_past)
    return next(iter([*lasting, *wrong]), None)


def last_good_step(steps: Steps, found: Sequence[Event]) -> int | None:
    """The last step before any finding of what went wrong and lasts; None where nothing did.

    What went wrong in the first steps has no step before it.
    """
    first = min((at for event in found for at in event.lasting_onsets), default=-math.inf)
    good = [number for number in steps.numbers if number < first]
    return good[-1] if good else None


def other_events(found: Sequence[Event]) -> list[Event]:
    """What else went wrong than the main event, what lasts first."""
    wrong = [one for one in found if one.severity == WARNING and one is not main_event(found)]
    return sorted(wrong, key=lambda one: one.end is not None)


def verdict(steps: Steps, found: Sequence[Event], covered: Coverage) -> str:
    """A run in one line: what happened first, the last good step; or that nothing happened."""
    first, alone = main_event(found), f"{covered.ungrouped}; " if covered.ungrouped else ""
    if first is None:
        return alone + "; ".join(covered.verdict(found))
    rest = [one.title for one in other_events(found)]
    more = f"; also {'; '.join(rest[:_OTHERS])}" if rest else ""
    more += f"; {len(rest) - _OTHERS} more" if len(rest) > _OTHERS else ""
    good = last_good_step(steps, found)
    last = "" if good is None else f"; last good step {good:,}"
    return f"{alone}{first.headline}{last}{more}; {len(steps):,} steps"
