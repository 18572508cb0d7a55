"""Records that differ: those of one kind together, to try on all of them what explained one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.verify.causes.case import IMPOSSIBLE, LONE, REST, TYPED, Case, Cause
from grpo_cli.commands.verify.compare import (
    Column,
    Tolerance,
    column_of,
    deciding,
    digits_of,
)
from grpo_cli.commands.verify.expected import Expectation
from grpo_cli.commands.verify.judging import Judged
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.records import Record, layout
from grpo_cli.variants.plan import Plan

COUNTS = ("num_items_in_batch", "batch_num_tokens")
"""They differ from record to record of one run, and are in no answer."""


@dataclass(frozen=True, eq=False)
class Cohort(Case):
    """Records of one kind as one case, for causes that work record by record.

    Attributes:
        records: the records; ``record`` is the first.
    """

    records: Sequence[Record] = ()

    @property
    def mask(self) -> NDArray[np.bool_]:
        """[N as written] which tokens count."""
        if not self.is_masked:
            return np.ones(self.written.total, dtype=np.bool_)
        return np.frombuffer(b"".join(one.mask or b"" for one in self.records), np.bool_)

    @cached_property
    def written(self) -> Segments:
        """The tokens as written, cut into responses."""
        return Segments(np.array([width for one in self.records for width in one.widths], np.int64))

    def by_record(self, number: Callable[[Case], float]) -> F64:
        """[R] a number of each record, for its responses."""
        numbers, batch, weight = [], self.batch, self.breakdown.correction
        cuts = batch.cuts(range(len(self.records) + 1))
        for one, cut in zip(self.records, cuts, strict=True):
            own = Batch(  # all that is read, besides the record
                Segments(batch.responses.lengths[cut.responses]),
                Segments(np.array(cut.counts[2:3])),
                batch.groups[cut.responses] - cut.groups.start,
                cut.counts[1],
                rewards=None if batch.rewards is None else batch.rewards[cut.responses],
            )
            rejected = None if weight is None else weight[cut.tokens]
            alone = replace(self.breakdown, batch=own, correction=rejected)
            numbers.append(number(Case(one, alone, (), self.tolerance)))
        return self.batch.records.spread(np.array(numbers))

    def misfits(self, again: Breakdown) -> F64:
        """[M] as ``misfit``; NaN where one number of few digits alone differs."""
        own, wrong = np.zeros((2, len(self.records)))
        most, beyond = np.zeros(len(own)), np.zeros(len(own), np.bool_)
        beyond_tokens = np.zeros(len(own), np.bool_)
        for column in self.columns:
            found = self._found(column, again)
            if found is None:
                return np.full(len(own), np.inf)
            owner = np.repeat(np.arange(len(own)), column.counts)
            for values, into in ((column.found, own), (found, most)):
                np.fmax.at(into, owner, self.tolerance.needs(column, values))
            beyond |= self._differ(column, found, owner)
            differ = self._differ(column, column.found, owner)
            wrong += differ
            beyond_tokens |= differ & (column.expectation.level != "record")
        one_number = (wrong == 1) & ~beyond_tokens
        most[beyond | ~(most <= np.where(one_number, LONE, REST) * own)] = np.inf
        return np.where(one_number & self._is_typed, np.nan, most)

    @cached_property
    def _is_typed(self) -> NDArray[np.bool_]:
        """[M] whether a record's loss has few digits, which leave room."""
        found = np.zeros(len(self.records), np.bool_)
        for column in self.columns:
            if column.key in ("loss", "objective"):
                found |= [digits_of(value)[0] <= TYPED for value in column.values.tolist()]
        return found

    def _differ(self, column: Column, found: F64, owner: I64) -> NDArray[np.bool_]:
        return np.bincount(owner, ~self.tolerance.agree(column, found), len(self.records)) > 0


def _cohort(
    records: Sequence[Record],
    wanted: Sequence[Sequence[Expectation]],
    plan: Plan,
    tolerance: Tolerance,
) -> Cohort | None:
    """Evaluates records together; None where they expect other things."""
    if len(records) < 2 or len({tuple(one.kind for one in each) for each in wanted}) > 1:
        return None
    first = records[0].hyperparameters
    counts = {
        name: np.array([one.hyperparameters[name] for one in records])
        for name in COUNTS
        if name in first
    }
    chunk = replace(Chunk.of(records), varied=counts)
    breakdown = Evaluator(plan).evaluate(chunk)
    each = [
        column_of(records, some, breakdown, tolerance.decimals)
        for some in zip(*wanted, strict=True)
    ]
    known = [column for column in each if column is not None and not column.absent.all()]
    columns = deciding(known)
    if any(column.absent.any() for column in known):
        return None
    return Cohort(records[0], breakdown, columns, tolerance, records)


class _Group:
    """Records with one plan that may be evaluated together, and what was tried on them."""

    def __init__(self, plan: Plan, tolerance: Tolerance) -> None:
        self.records: list[Record] = []
        self.wanted: list[Sequence[Expectation]] = []
        self._plan, self._tolerance = plan, tolerance
        self._misfits: dict[Cause, F64] = {}

    @cached_property
    def cohort(self) -> Cohort | None:
        """The records as one case; None where they cannot be."""
        with suppress(*IMPOSSIBLE):
            return _cohort(self.records, self.wanted, self._plan, self._tolerance)
        return None

    def misfit(self, cause: Cause, at: int) -> float:
        """How far off a record is with a mistake; NaN where that has to be tried on it alone."""
        if not cause.by_record or self.cohort is None:
            return np.nan
        if cause not in self._misfits:
            self._misfits[cause] = np.full(len(self.records), np.nan)
            with suppress(*IMPOSSIBLE):
                self._misfits[cause] = self.cohort.misfits(cause.evaluate(self.cohort))
        return float(self._misfits[cause][at])


class Suspect:
    """A record that differs, which is evaluated when that is needed."""

    def __init__(self, judged: Judged, record: Record, group: _Group) -> None:
        self._record, self._plan, self._tolerance = record, judged.plan, judged.within
        self._group, self._at = group, len(group.records)
        group.records.append(record)
        group.wanted.append(judged.wanted)

    @cached_property
    def case(self) -> Case:
        """The record, evaluated."""
        return Case.of(self._record, self._plan, self._tolerance)

    @property
    def objective(self) -> Objective:
        """What it is evaluated as; its ``COUNTS`` may be another record's."""
        cohort = self._group.cohort
        return self.case.objective if cohort is None else cohort.objective

    def misfit(self, cause: Cause) -> float:
        """How far off the record is with a mistake; NaN where only its case tells."""
        return self._group.misfit(cause, self._at)


def suspects(judged: Iterable[Judged]) -> dict[int, Suspect]:
    """Groups the records that differ by kind: ``id()`` of what was judged → its record."""
    groups: dict[Hashable, _Group] = {}
    found = {}
    for one in judged:
        record, plan, tolerance = one.record, one.plan, one.within
        if record is None:
            continue
        free = {*COUNTS} - plan.uniform
        settings = {name: x for name, x in record.hyperparameters.items() if name not in free}
        same = layout(record, settings), record.mask is None
        key = id(plan), tolerance, same, len(record.hyperparameters)
        group = groups.setdefault(key, _Group(plan, tolerance))
        found[id(one)] = Suspect(one, record, group)
    return found
