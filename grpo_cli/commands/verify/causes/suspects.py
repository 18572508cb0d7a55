"""Records that differ: those of one kind together, to try a cause on all of them at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE, Cause
from grpo_cli.commands.verify.causes.compared import COUNTS
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import Expectation
from grpo_cli.commands.verify.judging import Judged
from grpo_cli.records import Record, layout
from grpo_cli.variants.plan import Plan

_FREE = frozenset(COUNTS)
_TOKENS = 16_384
"""Tokens of records that are tried together."""


class _Group:
    """Records that may be evaluated together, and how far off each is with each cause tried."""

    def __init__(self, plan: Plan, tolerance: Tolerance) -> None:
        self.plan, self.tolerance = plan, tolerance
        self.records: list[Record] = []
        self.wanted: list[Sequence[Expectation]] = []
        self._misfits: dict[Cause, list[float]] = {}

    @cached_property
    def case(self) -> Case | None:
        """The records as one case; None where there is one, or they expect other things."""
        with suppress(*IMPOSSIBLE):
            if self.records[1:]:
                return Case.of(self.records, self.wanted, self.plan, self.tolerance).rounded
        return None

    def misfits(self, cause: Cause) -> list[float]:
        """How far off each record is; NaN where that has to be tried on it alone."""
        if cause not in self._misfits:
            self._misfits[cause] = [np.nan] * len(self.records)
            with suppress(*IMPOSSIBLE):
                if cause.by_record and (case := self.case) is not None:
                    off = case.misfits(cause.evaluate(case)) - case.roundings
                    self._misfits[cause] = off.tolist()
        return self._misfits[cause]


class Suspect:
    """A record that differs, which is evaluated when a cause is tried on it.

    Args:
        record: the record.
        wanted: what it expects.
        group: those that it may be evaluated with.
    """

    def __init__(self, record: Record, wanted: Sequence[Expectation], group: _Group) -> None:
        self._record, self._wanted = record, wanted
        self._group, self._at = group, len(group.records)
        group.records.append(record)
        group.wanted.append(wanted)

    @cached_property
    def case(self) -> Case:
        """The record alone."""
        return Case.of([self._record], [self._wanted], self._group.plan, self._group.tolerance)

    @property
    def alone(self) -> Suspect:
        """It without its group, which is then not kept."""
        group = _Group(self._group.plan, self._group.tolerance)
        return Suspect(self._record, self._wanted, group)

    @property
    def key(self) -> Hashable:
        """That of what it is evaluated as."""
        return (self._group.case or self.case).key

    def misfit(self, cause: Cause) -> float:
        """How far off it is with a cause, beyond its rounding; infinite where it does not agree."""
        found = self._group.misfits(cause)[self._at]
        if found != found:
            found = cause.misfit(self.case.rounded) - self.case.rounded.rounding
        return max(found, 0.0)


def suspects(judged: Iterable[object]) -> dict[int, Suspect]:
    """The records that differ, by the ``id()`` of what was judged; neighbours of a kind grouped."""
    found: dict[int, Suspect] = {}
    group, kind, room = None, None, 0
    for one in judged:
        if not isinstance(one, Judged) or one.record is None:
            continue
        record, plan, tolerance = one.record, one.plan, one.within
        own = plan, tolerance, layout(record, _FREE - plan.uniform), record.mask is None
        if group is None or own != kind or room <= 0:
            group, kind, room = _Group(plan, tolerance), own, _TOKENS
        found[id(one)] = Suspect(record, one.wanted, group)
        room -= sum(record.widths)
    return found
