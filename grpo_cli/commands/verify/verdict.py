"""Judges records of one layout: which of them evaluate to what they expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.commands.verify.causes.case import Cause
from grpo_cli.commands.verify.compare import (
    Column,
    Difference,
    Tolerance,
    column_of,
    deciding,
    differences,
)
from grpo_cli.commands.verify.expected import Expectation, Flags, Wanted
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.records import Record


@dataclass(frozen=True)
class Verdict:
    """What became of one record.

    Attributes:
        record: the record.
        variant, signature: what it was evaluated as.
        compared: the keys that were compared, in the order of the stages.
        ignored: the keys of ``expected`` that this objective has no number for.
        first: where it first differs; None where everything agrees.
        also: the other keys that differ.
        metrics: where what the trainer logged besides its loss differs. It decides nothing where
            the record expects anything else: a metric is often defined otherwise than its name
            suggests.
        pattern: what is known of the difference where no cause explains it.
        undefined: keys whose value is NaN because no token counts (0/0), where grpo has 0; they
            are not compared.
        rounded: keys that were rounded to half precision, and to which.
        causes: why, the simplest first; each of them explains everything that is expected.
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
        """Returns the verdict as JSON."""
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
                {"key": metric.key, "expected": metric.expected, "got": metric.got}
                for metric in self.metrics
            ],
            "rounded": dict(self.rounded),
        }


def judge(
    records: Sequence[Record],
    wanted: Sequence[Wanted],
    breakdown: Breakdown,
    tolerance: Tolerance,
    variant: str,
) -> list[Verdict | InputError]:
    """Compares records with what they expect, in the order of the stages.

    Args:
        records: records of one layout, masked or not.
        wanted: what each of them expects: the same keys at the same levels.
        breakdown: what they evaluate to, each a batch of its own.
        tolerance: when two numbers agree.
        variant: what they were evaluated as.

    Returns:
        [M] the verdicts; an error for a record of which nothing can be compared.
    """
    keys = [_compare(records, each, breakdown, tolerance) for each in _by_key(wanted)]
    signature = breakdown.objective.signature
    return [
        _verdict(at, record, ignored, keys, variant=variant, signature=signature)
        for at, (record, (_, ignored)) in enumerate(zip(records, wanted, strict=True))
    ]


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


def _by_key(wanted: Sequence[Wanted]) -> Iterator[tuple[Expectation, ...]]:
    return zip(*(expectations for expectations, _ in wanted), strict=True)


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


def _verdict(
    at: int,
    record: Record,
    ignored: Sequence[str],
    keys: Sequence[_Compared],
    *,
    variant: str,
    signature: str,
) -> Verdict | InputError:
    ignored = (*ignored, *(each.key for each in keys if each.absent[at]))
    undefined = tuple(each.key for each in keys if each.undefined[at])
    compared = [each for each in keys if each.key not in (*ignored, *undefined)]
    if not compared and not undefined:
        return _nothing(record, ignored)
    columns = [each.column for each in compared if each.column is not None]
    decide = {column.key for column in deciding(columns)}
    differing = [each.differences[at] for each in compared if at in each.differences]
    decisive = [difference for difference in differing if difference.key in decide]
    return Verdict(
        record,
        variant,
        signature,
        compared=tuple(each.key for each in compared),
        ignored=ignored,
        first=decisive[0] if decisive else None,
        also=tuple(difference.key for difference in decisive[1:]),
        metrics=tuple(difference for difference in differing if difference.key not in decide),
        undefined=undefined,
        rounded={column.key: column.precision[at] for column in columns if column.precision[at]},
    )


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
