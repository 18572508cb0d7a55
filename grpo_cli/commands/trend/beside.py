"""Logged series beside recomputed ones: do they agree, and if not, what else does?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_cli.commands.trend.logs import Log
from grpo_cli.commands.trend.metrics import functions
from grpo_cli.commands.trend.step import Step
from grpo_cli.terminal.numbers import shown

_SAME = 1e-4
"""Relative: frameworks compute in single precision, and some logs are rounded to a few digits."""
_LEAST_OF = {"loss": 1e-6}
"""Absolute: a sum of terms of about 1 that cancel."""
_NEAR = 1e-7
_UNKNOWN = {
    "grad_norm": (
        "not compared: it is the norm over the parameters, and records have no more than the "
        "gradient of the log-probs (gradient_norm)"
    ),
    "loss": (
        "not compared: it is a mean over micro-batches and ranks, which records do not tell; "
        "the column loss is that of the step as one batch"
    ),
}
_UNKNOWN |= dict.fromkeys(("pg_loss", "policy_loss"), _UNKNOWN["loss"])
"""By the last part of a logged name: why there is nothing to compare it with."""
_SHIFTS = (0, 1, -1)
_LEAST = 3

if TYPE_CHECKING:
    from grpo_cli.commands.trend.run import Run

Series = Mapping[str, Mapping[int, float | None]]
Logged = Mapping[int, Mapping[str, float | None]]


@dataclass(frozen=True)
class Comparison:
    """A logged series and the recomputed one of its name.

    Attributes:
        name: as logged.
        steps: how many were compared.
        agrees: whether all agree.
        first: the first step that does not, by the number in the records.
        logged, recomputed: the values there.
        because: what explains the difference, where something does.
    """

    name: str
    steps: int
    agrees: bool
    first: int | None
    logged: float | None
    recomputed: float | None
    because: str


def framework_of(log: Log, names: Mapping[str, Mapping[str, object]]) -> str:
    """The framework most of whose names are in a log."""
    return max(names, key=lambda framework: len(names[framework].keys() & log.keys()))


def shift_of(log: Log, series: Series) -> int:
    """How many steps a log counts ahead: TRL logs step 1 when it has done step 0."""
    return max(_SHIFTS, key=lambda shift: (_matches(log, series, shift), -abs(shift)))


def _matches(log: Log, series: Series, shift: int) -> int:
    return sum(
        _alike(value, series[name].get(step - shift))
        for name, values in log.items()
        if name in series and len(set(values.values())) > 1
        for step, value in values.items()
    )


def compare(log: Log, series: Series, others: Series) -> list[Comparison]:
    """Each logged series that was recomputed; and of loss and gradient, why they were not.

    Args:
        log: what was logged.
        series: name as logged → step → recomputed value.
        others: everything else that was recomputed, which may be what the log really is.
    """
    shift = shift_of(log, series)
    found = [
        _compared(name, log[name], series[name], others, shift) for name in series if name in log
    ]
    return found + [
        Comparison(name, 0, agrees=False, first=None, logged=None, recomputed=None, because=why)
        for name in log
        if name not in series and (why := _UNKNOWN.get(name.rpartition("/")[2]))
    ]


def _compared(
    name: str,
    logged: Mapping[int, float],
    ours: Mapping[int, float | None],
    others: Series,
    shift: int,
) -> Comparison:
    pairs = [
        (step - shift, value, own)
        for step, value in sorted(logged.items())
        if (own := ours.get(step - shift)) is not None
    ]
    near = _LEAST_OF.get(name, _NEAR)
    wrong = [pair for pair in pairs if not _alike(pair[1], pair[2], near)]
    if not wrong:
        because = "" if pairs else "the records lack what it is made of"
        return Comparison(name, len(pairs), bool(pairs), None, None, None, because)
    step, value, own = wrong[0]
    because = _because(pairs, logged, others, shift)
    return Comparison(
        name, len(pairs), agrees=False, first=step, logged=value, recomputed=own, because=because
    )


def _because(
    pairs: Sequence[tuple[int, float, float]],
    logged: Mapping[int, float],
    others: Series,
    shift: int,
) -> str:
    ratios = [value / own for _, value, own in pairs if own]
    if len(ratios) >= _LEAST and max(ratios) - min(ratios) <= _SAME * abs(ratios[0]):
        return f"it is {shown(ratios[0])} times ours at every step"
    for name, series in others.items():
        known = [(value, series.get(step - shift)) for step, value in logged.items()]
        apart = [pair for pair in known if pair[1] is not None]
        if len(apart) >= _LEAST and all(_alike(*pair) for pair in apart) and _varies(apart):
            return f"it is {name}"
    return ""


def _varies(pairs: Sequence[tuple[float, float | None]]) -> bool:
    return len({value for value, _ in pairs}) > 1


def _alike(value: float, own: float | None, near: float = _NEAR) -> bool:
    return own is not None and math.isclose(value, own, rel_tol=_SAME, abs_tol=near)


@dataclass(frozen=True)
class Beside:
    """A log beside the run that it is of.

    Attributes:
        framework: whose names were looked for.
        series: what was compared.
        logged: name → step → value, by the numbers of the records' steps.
    """

    framework: str
    series: list[Comparison]
    logged: Series

    @property
    def told(self) -> dict[str, object]:
        """What the JSON document has of it."""
        return {"framework": self.framework, "series": self.series}


def as_logged(framework: str, run: Run, steps: Sequence[Step]) -> Logged:
    """Step → what a framework would have logged there.

    TRL logs each reward function by itself, and calls it as we do.
    """
    if framework != "trl":
        return run.logged
    return {
        step.number: run.logged[step.number]
        | {name: step.metrics[name] for name in functions(step.metrics)}
        for step in steps
    }


def beside(
    framework: str,
    log: Log,
    logged: Mapping[int, Mapping[str, float | None]],
    steps: Sequence[Step],
) -> Beside:
    """Compares a log with what a framework would have logged at each step of a run."""
    names = next(iter(logged.values()), {})
    series = {name: {step: row[name] for step, row in logged.items()} for name in names}
    others = {
        metric: {step.number: step.metrics[metric] for step in steps}
        for metric in (steps[0].metrics if steps else ())
    }
    shift = shift_of(log, series)
    aligned = {
        name: {step - shift: value for step, value in values.items()}
        for name, values in log.items()
    }
    return Beside(framework, compare(log, series, others), aligned)


def renamed(steps: Sequence[Step], logged: Logged) -> list[Step]:
    """The steps with a framework's metrics in the place of ours."""
    return [replace(step, metrics=logged[step.number]) for step in steps]
