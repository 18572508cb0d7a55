"""The findings of a run: changes and passed limits; what was looked at; and ``--fail-on``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.options import complete
from grpo_cli.commands.trend.metrics import ALL, METRICS, OBJECTIVE, Metric
from grpo_cli.commands.trend.metrics import metric as metric_of
from grpo_cli.commands.trend.onsets import LEAST, Onset, Series, onsets, vanished
from grpo_cli.commands.trend.step import Finding, Flags, Place, Step, Steps
from grpo_cli.errors import UsageError
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.terminal.numbers import shell_line, shown


class Limit(NamedTuple):
    """A bound that a framework publishes; a finding if most of five steps, or of all, pass it."""

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


class _Watched(NamedTuple):
    """A metric, the places of the steps that have it, and its values there."""

    metric: Metric
    places: I64
    values: F64


def findings(steps: Steps, flags: Flags = _NO_FLAGS) -> list[Finding]:
    """Where a run changed, the earliest first.

    Args:
        steps: by number.
        flags: what goes into the commands.
    """
    known = map(metric_of, steps.metrics if steps else ())
    series = [_watched(one, steps) for one in known if one is not None and one.watched]
    series = [one for one in series if len(one.values) >= LEAST]
    pairs = zip(series, _onsets(series), strict=True)
    found = [_found(one, steps, onset, flags) for one, onset in pairs if onset is not None]
    found += [one for limit in LIMITS for one in _beyond(limit, steps, flags)]
    return sorted(found, key=lambda one: one.onset)


def _watched(metric: Metric, steps: Steps) -> _Watched:
    values = steps.metrics.get(metric.name, np.zeros(0))
    places = np.flatnonzero(~np.isnan(values))
    return _Watched(metric, places, values[places])


def _onsets(watched: Sequence[_Watched]) -> list[Onset | None]:
    gone = [vanished(one.values) if one.metric.log else None for one in watched]
    series = [
        Series(
            _scaled(one.values, one.metric), one.metric.drift == "up", one.metric.drift == "down"
        )
        for one in watched
    ]
    return [first or second for first, second in zip(gone, onsets(series), strict=True)]


def _found(watched: _Watched, steps: Steps, found: Onset, flags: Flags) -> Finding:
    metric, places, values = watched
    after = values[found.at :]
    worst = steps[places[found.at + int(after.argmax() if found.up else after.argmin())]]
    begun = steps[places[found.at]]
    sentence = _sentence(metric, found, values, begun.number)
    return _finding(metric, found.kind, begun, sentence, worst, flags, float(found.score))


def _scaled(values: F64, metric: Metric) -> F64:
    """By its logarithm, what spans orders of magnitude; zeros as half the least that is not."""
    if not metric.log or (values < 0.0).any() or not (values > 0.0).any():
        return values
    return np.log(np.maximum(values, values[values > 0.0].min() / 2))


def _sentence(metric: Metric, found: Onset, values: F64, step: int) -> str:
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


def _beyond(limit: Limit, steps: Steps, flags: Flags) -> Iterator[Finding]:
    metric, places, values = _watched(METRICS[limit.metric], steps)
    passed = values > limit.bound if limit.above else values < limit.bound
    most = min(_MOST, len(values) // 2 + 1)
    for at in np.flatnonzero(passed).tolist():
        window = passed[at : at + _OF]
        if window.sum() < most:
            continue
        worst = int(values.argmax() if limit.above else values.argmin())
        begun = steps[places[at]]
        sentence = (
            f"{limit.metric} is {'above' if limit.above else 'below'} {limit.bound} "
            f"from step {begun.number} on, {shown(float(values[worst]))} at its worst; "
            f"the limit is that of {limit.source}"
        )
        yield _finding(metric, "limit", begun, sentence, steps[places[worst]], flags, math.inf)
        return


def _finding(
    metric: Metric,
    kind: str,
    begun: Step,
    sentence: str,
    worst: Step,
    flags: Flags,
    score: float,
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
        score,
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


def _cause(metric: Metric, step: Step, place: Place | None, flags: Flags) -> str:
    """What may explain the finding: faults of the data, or why the loss is what it is."""
    explains = "explain" if metric.name in _OF_LOSS and place is not None else "check"
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


# ---- what was looked at -------------------------------------------------------------------------


class Coverage:
    """What a verdict about a run is based on.

    Args:
        steps: by number.
        fields: the columns that were asked for; None for those that are shown unasked.
        missing: the columns for want of which nothing was evaluated.
        on_policy: whether no record has log_probs_old.
    """

    def __init__(
        self,
        steps: Steps,
        fields: Collection[str] | None,
        missing: Mapping[str, MissingColumnError],
        *,
        on_policy: bool,
    ) -> None:
        counts = {one.name: np.count_nonzero(~np.isnan(steps.metrics[one.name])) for one in ALL}
        assumed = [one for one in ALL if on_policy and one.worst == "ratio" and counts[one.name]]
        watched = [one for one in ALL if one.watched and counts[one.name] >= LEAST]
        self.steps = len(steps)
        self.watched = len([one for one in watched if one not in assumed])
        self._limited = any(counts[limit.metric] for limit in LIMITS)
        self._assumed = [one.name for one in assumed if fields is None or one.name in fields]
        self._missing: dict[str, list[str]] = {}
        for one in ALL if steps else ():
            asked = one.usual if fields is None else one.name in fields
            if asked and not counts[one.name]:
                self._missing.setdefault(_needed(one, missing), []).append(one.name)

    @property
    def verdict(self) -> str:
        """The sentence for a run in which nothing was found."""
        limits = "; no limit passed" if self._limited else ""
        if self.steps < LEAST:
            are = f"there {'is' if self.steps == 1 else 'are'} {self.steps}"
            return f"shifts and drifts are looked for in {LEAST} steps, {are}{limits}"
        if not self.watched:
            return f"no series has a value in {LEAST} steps, so no change can be found{limits}"
        series = f"{self.watched} series" if self.watched > 1 else "1 series"
        return f"no change found in {series} over {self.steps:,} steps{limits}"

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
        if self._assumed:
            sentences.append(
                f"constant by assumption: {', '.join(self._assumed)} (log_probs_old is missing, so "
                "every ratio is taken as 1)"
            )
        return sentences


def _needed(metric: Metric, missing: Mapping[str, MissingColumnError]) -> str:
    """What a metric needs, as far as the records lack it."""
    if metric.needs != OBJECTIVE or not missing:
        return metric.needs
    columns = dict.fromkeys(one.path.rpartition(".")[2] for one in missing.values())
    return ", ".join(columns)


# ---- --fail-on ----------------------------------------------------------------------------------

_TESTS: Mapping[str, Callable[[F64, float], NDArray[np.bool_]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*(\S+)\s*")
FINDINGS = "findings"


class Condition(NamedTuple):
    """A test of ``--fail-on``; without a metric it holds where anything was found."""

    text: str
    metric: str = ""
    test: str = ""
    bound: float = 0.0

    def answer(self, steps: Steps, findings: Sequence[Finding]) -> str | None:
        """Why it holds, in a sentence; None if it does not."""
        if not self.metric:
            count = "one finding" if len(findings) == 1 else f"{len(findings)} findings"
            return count if findings else None
        values = steps.metrics.get(self.metric, np.zeros(0))
        for at in np.flatnonzero(_TESTS[self.test](values, self.bound)).tolist():
            value = steps.values(self.metric)[at]
            return f"{self.text}: {shown(value)} at step {steps.numbers[at]}"
        return None


def read_condition(text: str) -> Condition:
    """The condition that a flag spells.

    Raises:
        UsageError: for text that is no condition, or an unknown metric.
    """
    if text.strip() == FINDINGS:
        return Condition(text)
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"--fail-on: expected METRIC>NUMBER or {FINDINGS}, got {text!r}")
    name = found[1]
    metric = name if metric_of(name) else complete.known("--fail-on", name, METRICS)
    try:
        bound = float(found[3])
    except ValueError:
        raise UsageError(f"--fail-on: expected a number after {found[2]}, got {found[3]}") from None
    return Condition(text.strip(), metric, found[2], bound)
