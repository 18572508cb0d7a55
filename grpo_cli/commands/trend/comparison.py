"""Logged series against recomputed ones: do they agree, and if not, what else does?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer, Printed, notice_line
from grpo_cli.commands.frames import Array, Frames
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.logs import Log
from grpo_cli.commands.trend.names import NAMES
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.commands.trend.verdict import Coverage, last_good_step
from grpo_cli.commands.trend.watched import watch_logged
from grpo_cli.terminal.numbers import shown

_SAME = 1e-4
"""Relative: frameworks compute in single precision, and some logs are rounded."""
_LEAST_OF = {"loss": 1e-6}
"""Absolute: a sum of terms of about 1 that cancel."""
_NEAR = 1e-7
_UNKNOWN = {
    "grad_norm": (
        "not compared: the log has the norm over the parameters, records only have the gradient "
        "of the log-probs (gradient_norm)"
    ),
    "loss": (
        "not compared: the trainer averages the loss of micro-batches and ranks, which records do "
        "not name; grpo's loss is of the whole step"
    ),
}
_UNKNOWN |= dict.fromkeys(("pg_loss", "policy_loss"), _UNKNOWN["loss"])
"""By the last part of a logged name: why there is nothing to compare it with."""
_DECIMALS, _FIGURES = range(3, 9), range(3, 7)
"""Decimals, and figures, of a log that rounds: fewer may be all that its values have."""
_SHIFTS = (0, 1, -1)
_FITS = 0.25
"""The share of all values above which a shift of the log's steps is none of chance."""
_LEAST = 3

Series = Mapping[str, Mapping[int, float | None]]


@dataclass(frozen=True)
class Comparison:
    """A logged series and the recomputed one of its name.

    Attributes:
        name: as logged.
        steps: how many were compared.
        agrees: whether all of them agree.
        first: the first step that does not, by the number in the records.
        logged, recomputed: the values there.
        because: what explains the difference, where something does.
    """

    name: str
    steps: int
    agrees: bool
    first: int | None = None
    logged: float | None = None
    recomputed: float | None = None
    because: str = ""


def framework_of(log: Log | None) -> str | None:
    """The framework most of whose names are in a log."""
    if log is None:
        return None
    return max(NAMES, key=lambda framework: len(NAMES[framework].keys() & log.keys()))


class Precision(NamedTuple):
    """How exactly a log writes its numbers.

    Attributes:
        decimals, figures: the most that one has.
        least: what numbers may differ by in any case: sums in single precision do.
    """

    decimals: int
    figures: int
    least: float = _NEAR

    @classmethod
    def of(cls, values: Iterable[float]) -> Precision:
        """That of some numbers."""
        written = [Decimal(repr(one)) for one in values]
        decimals = max((-int(one.as_tuple().exponent) for one in written), default=0)
        figures = max((len(one.normalize().as_tuple().digits) for one in written), default=0)
        return cls(decimals, figures)

    def alike(self, value: float, other: float | None) -> bool:
        """Whether a logged number may be the other one, rounded."""
        units = [10.0**-self.decimals] if self.decimals in _DECIMALS else [0.0]
        if value and self.figures in _FIGURES:
            units.append(10.0 ** (math.floor(math.log10(abs(value))) + 1 - self.figures))
        near = max(self.least, 0.5001 * max(units) + _SAME * abs(value))
        return other is not None and math.isclose(value, other, rel_tol=_SAME, abs_tol=near)


def _compared(
    name: str,
    logged: Mapping[int, float],
    recomputed: Mapping[int, float | None],
    shift: int,
    precision: Precision,
) -> Comparison:
    precision = precision._replace(least=_LEAST_OF.get(name, _NEAR))
    pairs = [
        (step - shift, value, known)
        for step, value in sorted(logged.items())
        if (known := recomputed.get(step - shift)) is not None
    ]
    wrong = next((pair for pair in pairs if not precision.alike(*pair[1:])), None)
    if wrong is None:
        because = "" if pairs else "the records lack the data for it"
        return Comparison(name, len(pairs), agrees=bool(pairs), because=because)
    because = _factor(pairs, precision)
    first, value, known = wrong
    return Comparison(
        name, len(pairs), agrees=False, first=first, logged=value, recomputed=known, because=because
    )


def _factor(pairs: Sequence[tuple[int, float, float]], precision: Precision) -> str:
    """The one factor between a log and grpo's values, at every step or from a step on; or ""."""
    begin = next(at for at, pair in enumerate(pairs) if not precision.alike(*pair[1:]))
    for at, where in ((0, "at every step"), (begin, f"from step {pairs[begin][0]} on")):
        after = pairs[at:]
        ratios = [value / known for _, value, known in after if known and math.isfinite(known)]
        if len(ratios) >= _LEAST and max(ratios) - min(ratios) <= _SAME * abs(ratios[0]):
            return f"the log has {shown(ratios[0])} times grpo's value {where}"
    return ""


@dataclass(frozen=True)
class LogComparison(Answer):
    """A log compared with the run that it is of.

    Attributes:
        framework: whose names were looked for.
        series: what was compared.
        logged: name → step → value, by the numbers of the records' steps.
        shift: the log's number of a step − the records'.
        step: the records' first that both have.
    """

    framework: str
    series: list[Comparison]
    logged: Series
    shift: int = 0
    step: int = 0

    @property
    def alignment(self) -> str:
        """How the steps of the log were numbered, where not as those of the records; or ""."""
        if not self.shift:
            return ""
        return f"log step {self.step + self.shift} fits record step {self.step}, and so on"

    def fields(self) -> dict[str, Any]:
        """What the JSON has of it."""
        return {"framework": self.framework, "series": self.series}


@dataclass(frozen=True)
class Trend(Frames, Printed):
    """The answer of ``trend``.

    Attributes:
        variant: the variant.
        signatures: of the objectives that ran.
        steps: the steps, by number.
        findings: where the run changed, the earliest first.
        events: those that began together, the earliest first.
        verdict: the sentence that says what happened, with the last good step, or that nothing did.
        coverage: what the verdict is based on.
        log: the comparison with a log; None without ``--log``.
    """

    variant: str
    signatures: Sequence[str]
    steps: Steps
    findings: Sequence[Finding]
    events: Sequence[Event]
    verdict: str
    coverage: Coverage = field(compare=False)
    log: LogComparison | None = None

    of_views = ("coverage",)

    def __str__(self) -> str:
        """What the command prints into a pipe, and how many notices there are."""
        stream = BytesIO()
        print_answer = self.view().print_answer
        print_answer(stream, self, None, (), plot=False, limit=None, quiet=False, brief=False)
        return "\n".join([stream.getvalue().decode().strip("\n"), *notice_line(self.notices)])

    @cached_property
    def last_good_step(self) -> int | None:
        """The step to go back to; None where nothing goes wrong that lasts."""
        return last_good_step(self.steps, self.events)

    @property
    def headline(self) -> str:
        """What happened."""
        return f"{self.variant and f'{self.variant}: '}{self.verdict}"

    def table(self) -> list[dict[str, Any]]:
        """The steps, in the columns that a terminal shows of them."""
        return self.steps.table()

    def columns(self) -> dict[str, Array]:
        """The steps' rows as arrays by name; a number that is unknown is NaN."""
        return self.steps.columns()

    def fields(self) -> dict[str, Any]:
        """The JSON, without a log where none is given."""
        named = super().fields() | {"steps": [*self.steps]}
        named |= {"last_good_step": self.last_good_step, "coverage": None}
        return {name: value for name, value in named.items() if value is not None}


def compare_log(
    framework: str | None,
    log: Log | None,
    logged: Mapping[str, F64],
    steps: Steps,
) -> LogComparison | None:
    """Compares a log, if any, with what a framework would have logged at each step of a run.

    Args:
        framework, log: whose names are in the log.
        logged: what it would have logged: name → [S].
        steps: the run.
    """
    if log is None or framework is None:
        return None
    series, others = (
        {name: dict(zip(steps.numbers, made.values(name), strict=True)) for name in made.metrics}
        for made in (steps.with_metrics(logged), steps)
    )

    for name in log:  # under another name, or of a term that this objective has not
        row = None if name.rpartition("/")[2] in _UNKNOWN else watch_logged(name)
        lacks = all(value is None for value in series.get(name, {}).values())
        if lacks and row is not None and row.name in others:
            series[name] = others[row.name]

    written = {name: Precision.of(values.values()) for name, values in log.items()}

    def fitting(shift: int) -> tuple[int, int]:
        """How many values are those of the records with steps numbered so, and of how many."""
        fits = [
            written[name].alike(value, known)
            for name, values in log.items()
            if name in series and len({*values.values()}) > 1
            for step, value in values.items()
            if (known := series[name].get(step - shift)) is not None
        ]
        return sum(fits), len(fits)

    # TRL logs step 1 when it has done step 0.
    fits = {shift: fitting(shift) for shift in _SHIFTS}
    shift = max(_SHIFTS, key=lambda shift: (fits[shift][0], -abs(shift)))
    shift = shift if fits[shift][0] > _FITS * fits[shift][1] else 0
    found = [
        _compared(name, log[name], values, shift, written[name])
        for name, values in series.items()
        if name in log
    ]
    found += [
        Comparison(name, 0, agrees=False, because=why)
        for name in log
        if name not in series and (why := _UNKNOWN.get(name.rpartition("/")[2]))
    ]
    aligned = {
        name: {step - shift: value for step, value in values.items()}
        for name, values in log.items()
    }
    both = {step for values in aligned.values() for step in values} & {*steps.numbers}
    return LogComparison(framework, found, aligned, shift, min(both, default=0))
