"""Whether one record evaluates to what it expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from grpo_cli.commands.verify.causes.case import Cause
from grpo_cli.commands.verify.compare import Column, Difference, Tolerance, column, difference
from grpo_cli.commands.verify.expected import METRIC, Expectation, expectations
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Verdict:
    """What became of one record.

    Attributes:
        record: the record.
        variant, signature: what it was evaluated as.
        compared: the keys that were compared, in the order of the stages.
        ignored: the keys of ``expected`` that say nothing of this objective.
        first: where it first differs; None where everything agrees.
        also: the other keys that differ.
        metrics: where what the trainer logged beside its loss differs. It decides nothing where the
            record expects anything else: a metric is often defined otherwise than its name says.
        pattern: what is known of the difference where no cause explains it.
        undefined: keys whose value is NaN because no token counts (0/0), where grpo has 0; they
            are not compared.
        rounded: keys that agree as far as the half precision goes that they were rounded to.
        causes: why, the simplest first; all of them explain everything that is expected.
    """

    record: Record
    variant: str
    signature: str
    compared: tuple[str, ...]
    ignored: tuple[str, ...]
    first: Difference | None
    also: tuple[str, ...] = ()
    metrics: tuple[Difference, ...] = ()
    causes: tuple[Cause, ...] = ()
    pattern: str = ""
    undefined: tuple[str, ...] = ()
    rounded: Mapping[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs that decides."""
        return self.first is None

    def row(self) -> dict[str, Any]:
        """The verdict as JSON."""
        record, first = self.record, None
        if self.first is not None:
            words = [cause.words for cause in self.causes]
            stages = [*dict.fromkeys(cause.stage for cause in self.causes)]
            first = asdict(self.first) | {"cause": " or ".join(words) or None, "causes": words}
            first |= {"stage": (stages or [self.first.stage])[0], "stages": stages}
            first["pattern"] = self.pattern or None
        return {
            "id": record.name,
            "source": record.source,
            "line": record.line,
            "agrees": self.agrees,
            "variant": self.variant,
            "signature": self.signature,
            "compared": list(self.compared),
            "ignored": list(self.ignored),
            "first": first,
            "also": list(self.also),
            "metrics": [
                {"key": one.key, "expected": one.expected, "got": one.got} for one in self.metrics
            ],
            "rounded": dict(self.rounded),
        }


def judge(record: Record, plan: Plan, tolerance: Tolerance) -> Verdict:
    """Evaluates a record and compares it with what it expects, in the order of the stages.

    Raises:
        InputError: where the record cannot be evaluated, or what it expects cannot be read.
    """
    breakdown, columns, ignored = compared(record, plan)
    undefined = tuple(one.of.key for one in columns if _is_undefined(one.of, breakdown))
    columns = [one for one in columns if one.of.key not in undefined]
    if not columns and not undefined:
        raise _nothing(record, ignored)
    found = (difference(one, breakdown, tolerance) for one in columns)
    differing = [one for one in found if one is not None]
    metrics: list[Difference] = []
    if deciding(columns) != columns:
        metrics = [one for one in differing if one.stage == METRIC]
        differing = [one for one in differing if one.stage != METRIC]
    return Verdict(
        record,
        plan.variant,
        breakdown.objective.signature,
        tuple(one.of.key for one in columns),
        tuple(ignored),
        first=differing[0] if differing else None,
        also=tuple(one.key for one in differing[1:]),
        metrics=tuple(metrics),
        undefined=undefined,
        rounded={one.of.key: one.precision for one in columns if one.precision},
    )


def deciding(columns: list[Column]) -> list[Column]:
    """The columns that say whether a record agrees: metrics only where there are no others."""
    return [one for one in columns if one.of.stage != METRIC] or columns


def agreed(
    record: Record, plan: Plan, signature: str, compared: tuple[str, ...], ignored: list[str]
) -> Verdict:
    """The verdict on a record that is known to agree in what was compared."""
    return Verdict(record, plan.variant, signature, compared, tuple(ignored), first=None)


def compared(record: Record, plan: Plan) -> tuple[Breakdown, list[Column], list[str]]:
    """What the record evaluates to, what it expects of that, and what it cannot expect."""
    wanted, ignored = read_expectations(record)
    breakdown = _evaluate(record, plan)
    columns = []
    for one in wanted:
        if one.told.any() and one.of(breakdown) is not None:
            columns.append(column(one, record, breakdown))
        else:
            ignored.append(one.key)
    return breakdown, columns, ignored


def _is_undefined(one: Expectation, breakdown: Breakdown) -> bool:
    """Whether a NaN is expected of a mean over nothing, which is 0 here.

    verl's means divide 0 by 0 where no token counts, in the batch or after rejection.
    """
    if one.level != "record" or not (np.isnan(one.values[0]) and one.told[0]):
        return False
    named = {"policy": [POLICY], "kl": [KL]}.get(one.stage, [])
    terms = [term for term in breakdown.terms if term.name in named] or breakdown.active
    counted = [term.weights for term in terms if term.weights.counts is not None]
    return any(not breakdown.count(weights).any() for weights in counted)


def _nothing(record: Record, ignored: list[str]) -> InputError:
    """Nothing was compared: that is no agreement."""
    why = f"{', '.join(ignored)} cannot be" if ignored else "nothing is there to be"
    return InputError(
        f"{why} compared; put what your own loss returned there, as "
        '{"loss": …, "loss_gradient": [[…]]}',
        path=f"{record.prefix}expected",
        source=record.source,
        line=record.line,
    )


Wanted = tuple[list[Expectation], list[str]]
"""What a record expects, and the keys that say nothing here."""


def read_expectations(record: Record) -> Wanted:
    """What the record expects.

    Raises:
        InputError: where it cannot be read, with its place.
    """
    try:
        return expectations(record)
    except InputError as error:
        raise InputError(
            error.message,
            path=record.prefix + error.path,
            source=record.source,
            line=record.line,
        ) from None


def _evaluate(record: Record, plan: Plan) -> Breakdown:
    return Chunk.of([record]).run(Evaluator(plan).evaluate)
