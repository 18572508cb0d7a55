"""Records compared many at once: which of them surely agree with what they expect.

The others are looked at one by one, and what is said of them is said there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.verify.compare import OF_SUMS, Tolerance, part, slope_scale, sum_scale
from grpo_cli.commands.verify.expected import Expectation
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.records import Record

_SURELY = 0.999
"""Less than the tolerance, so that the last bit of a sum decides nothing."""

_RECORDS: Mapping[str, Callable[[Breakdown], F64]] = {
    "policy": lambda b: b.record_value(POLICY),
    "policy_loss": lambda b: -b.record_value(POLICY),
    "kl": lambda b: b.record_value(KL),
    "kl_loss": lambda b: b.record_value(KL),
    "objective": lambda b: b.record_objective,
    "loss": lambda b: -b.record_objective,
}
"""What a record may expect of itself, for many records; other keys are compared one by one."""

Flags = NDArray[np.bool_]
Kind = tuple[tuple[str, str], ...]


def kind(wanted: Sequence[Expectation]) -> Kind | None:
    """What records must have in common to be compared together; None for what cannot be."""
    for one in wanted:
        known = one.level in ("token", "response") or one.key in _RECORDS
        if not known or not one.told.any():
            return None
    return tuple((one.key, one.level) for one in wanted) or None


class Beside(NamedTuple):
    """What records alike expect under one key, of the tokens that count.

    Attributes:
        of: the first record's expectation.
        values, told: [n] the values of all, and which of them are there.
        owner: [n] the record of each.
        absolute: what each may be off, beside what it may be relatively.
        count: how many records.
    """

    of: Expectation
    values: F64
    told: Flags
    owner: I64
    absolute: F64 | float
    count: int  # type: ignore[assignment]  # hides tuple.count

    def found(self, breakdown: Breakdown) -> F64:
        """[n] what the records evaluate to."""
        found, _ = _found(self.of, breakdown)
        return np.full(len(self.values), np.nan) if found is None else found

    def near(self, found: F64, tolerance: Tolerance, part: float = 1.0) -> Flags:
        """[n] what agrees within a part of the tolerance (``Tolerance.agree``)."""
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(self.values), np.abs(found))
            allowed = part * (self.absolute + tolerance.rtol * size)
            near = np.abs(self.values - found) <= allowed
        near &= np.isfinite(self.values)
        agrees: Flags = near | (self.values == found) | ~self.told | np.isnan(found)
        return agrees

    def any(self, flags: Flags) -> Flags:
        """[count] which records have a number that is marked."""
        marked: Flags = np.bincount(self.owner, weights=flags, minlength=self.count) > 0
        return marked


def besides(
    records: Sequence[Record],
    wanted: Sequence[Sequence[Expectation]],
    breakdown: Breakdown,
    tolerance: Tolerance,
) -> list[Beside] | None:
    """Each key of records of one layout and kind; None where they cannot be compared together.

    Args:
        records: records of one layout.
        wanted: what each expects, all of one kind.
        breakdown: what they evaluate to, together.
        tolerance: when two numbers agree.
    """
    columns = []
    for at, one in enumerate(wanted[0]):
        found, owner = _found(one, breakdown)
        values = np.concatenate([each[at].values for each in wanted])
        told = np.concatenate([each[at].told for each in wanted])
        if one.level == "token" and records[0].mask is not None:
            counted = np.frombuffer(b"".join(record.mask or b"" for record in records), np.bool_)
            values, told = values[counted], told[counted]
        if found is None or len(values) != len(found):
            return None
        absolute: F64 | float | None = tolerance.atol
        if absolute is None:
            scale = _scale(one, values, owner, breakdown)
            absolute = (tolerance.rtol * part(one)) * scale[owner]
        columns.append(Beside(one, values, told, owner, absolute, len(records)))
    return columns


def agreeing(
    records: Sequence[Record],
    wanted: Sequence[Sequence[Expectation]],
    breakdown: Breakdown,
    tolerance: Tolerance,
) -> Flags:
    """[M] which records surely agree."""
    columns = besides(records, wanted, breakdown, tolerance)
    sure = np.full(len(records), columns is not None)
    for column in columns or ():
        near = column.near(column.found(breakdown), tolerance, _SURELY)
        near &= np.isfinite(column.values) | ~column.told
        sure &= ~column.any(~near)
    return sure


def _found(one: Expectation, breakdown: Breakdown) -> tuple[F64 | None, I64]:
    """What it evaluates to, and the record of each number."""
    records = breakdown.batch.records
    each = np.arange(records.count)
    if one.level == "record":
        return _RECORDS[one.key](breakdown), each
    counts = records.lengths if one.level == "response" else breakdown.record_tokens
    return one.of(breakdown), np.repeat(each, counts)


def _scale(one: Expectation, values: F64, owner: I64, breakdown: Breakdown) -> F64:
    """[M] the scale of each record."""
    if one.stage in OF_SUMS:
        return sum_scale(breakdown)
    scale = np.zeros(breakdown.batch.records.count)
    np.maximum.at(scale, breakdown.batch.records.index, slope_scale(one, breakdown))
    np.maximum.at(scale, owner, np.where(np.isfinite(values), np.abs(values), 0.0))
    return scale
