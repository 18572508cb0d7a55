"""Judges records of one kind: which of them evaluate to what they expect."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from grpo_cli.commands.verify.answer import Difference, MetricDifference, Verdict
from grpo_cli.commands.verify.compare import Column, Tolerance, column_of, deciding, differences
from grpo_cli.commands.verify.expected import Expectation, Flags, Wanted
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.records import Record, layout
from grpo_cli.variants.plan import Plan


class Question(NamedTuple):
    """A record and what it expects.

    Attributes:
        record: the record.
        plan: what it is evaluated as.
        wanted: what it expects.
    """

    record: Record
    plan: Plan
    wanted: Wanted

    @property
    def kind(self) -> Hashable:
        """What records must share to be judged together."""
        expected = [(each.key, each.level, bool(each.given.any())) for each in self.wanted[0]]
        return id(self.plan), tuple(expected), layout(self.record), self.record.mask is None


class Judged(NamedTuple):
    """A question and its answer.

    Attributes:
        verdict: what became of the record; where it differs, without a cause as yet.
        plan: what it was evaluated as.
        undefined: whether it expects NaN of a mean over nothing (0/0), where grpo has 0.
        record: the record, where it differs.
    """

    verdict: Verdict
    plan: Plan
    undefined: bool
    record: Record | None


def judge(
    questions: Sequence[Question], breakdown: Breakdown, tolerance: Tolerance
) -> list[Judged | InputError]:
    """Compares records of one kind with what they expect, in the order of the stages.

    Args:
        questions: the records.
        breakdown: what they evaluate to, each a batch of its own.
        tolerance: when two numbers agree.

    Returns:
        [M] the verdicts; an error for a record of which nothing can be compared.
    """
    records = [question.record for question in questions]
    by_key = zip(*(question.wanted[0] for question in questions), strict=True)
    keys = [_compare(records, each, breakdown, tolerance) for each in by_key]
    signature = breakdown.objective.signature
    return [_judged(at, each, keys, signature) for at, each in enumerate(questions)]


class _Compared(NamedTuple):
    """What some records expect under one key, compared.

    Attributes:
        key: what ``expected`` calls it.
        column: their values; None where the objective has no such quantity.
        absent: [M] the records that have no such quantity.
        undefined: [M] the records that expect NaN of a mean over nothing.
        differences: record → where it differs.
    """

    key: str
    column: Column | None
    absent: Flags
    undefined: Flags
    differences: Mapping[int, Difference]


def _compare(
    records: Sequence[Record],
    expectations: Sequence[Expectation],
    breakdown: Breakdown,
    tolerance: Tolerance,
) -> _Compared:
    first = expectations[0]
    found = first.evaluated(breakdown) if first.given.any() else None
    none = np.zeros(len(records), dtype=np.bool_)
    if found is None:
        return _Compared(first.key, None, ~none, none, {})
    column = column_of(records, expectations, breakdown)
    absent = np.isnan(found) if first.level == "record" else none
    undefined = _are_undefined(column, breakdown) & ~absent
    differing = dict(differences(column, found, breakdown, tolerance))
    return _Compared(first.key, column, absent, undefined, differing)


def _are_undefined(column: Column, breakdown: Breakdown) -> Flags:
    """[M] whether a NaN is expected of a mean over nothing, which is 0 here.

    verl's means divide 0 by 0 where no token counts, in the batch or after rejection.
    """
    stage, level = column.expectation.stage, column.expectation.level
    none = np.zeros(len(column.counts), dtype=np.bool_)
    if level != "record" or not np.isnan(column.values).any():
        return none
    named = {"policy": [POLICY], "kl": [KL]}.get(stage, [])
    terms = [term for term in breakdown.terms if term.name in named] or breakdown.active
    for term in terms:
        if term.weights.counts is not None:
            none |= breakdown.count(term.weights) == 0
    undefined: Flags = none & np.isnan(column.values) & column.given
    return undefined


def _judged(
    at: int, question: Question, keys: Sequence[_Compared], signature: str
) -> Judged | InputError:
    record, plan, (_, ignored) = question
    ignored = [*ignored, *(each.key for each in keys if each.absent[at])]
    compared = [each for each in keys if not each.absent[at] and not each.undefined[at]]
    undefined = any(each.undefined[at] for each in keys)
    if not compared and not undefined:
        return _nothing(record, ignored)
    columns = [each.column for each in compared if each.column is not None]
    decide = {column.key for column in deciding(columns)}
    differing = [each.differences[at] for each in compared if at in each.differences]
    decisive = [difference for difference in differing if difference.key in decide]
    verdict = Verdict(
        id=record.name,
        source=record.source,
        line=record.line,
        agrees=not decisive,
        variant=plan.variant,
        signature=signature,
        compared=tuple(each.key for each in compared),
        ignored=tuple(ignored),
        first=decisive[0] if decisive else None,
        also=tuple(difference.key for difference in decisive[1:]),
        metrics=tuple(
            MetricDifference(difference.key, difference.expected, difference.got)
            for difference in differing
            if difference.key not in decide
        ),
        rounded={column.key: column.precision[at] for column in columns if column.precision[at]},
    )
    return Judged(verdict, plan, undefined, None if verdict.agrees else record)


def _nothing(record: Record, ignored: Sequence[str]) -> InputError:
    """Returns the error for a record of which nothing was compared: that is no agreement."""
    why = f"{', '.join(ignored)} cannot be" if ignored else "nothing is there to be"
    return InputError(
        f"{why} compared; put what your own loss returned there, as "
        '{"loss": …, "loss_gradient": [[…]]}',
        path=f"{record.prefix}expected",
        source=record.source,
        line=record.line,
    )
