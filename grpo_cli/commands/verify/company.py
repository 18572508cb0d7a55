"""Records alike that differ: tried against a cause, many at once.

What is doubtful here is looked at one by one, so that no answer depends on the company it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from grpo_cli.commands.verify.causes.case import IMPOSSIBLE, Case, Cause
from grpo_cli.commands.verify.causes.pattern import pattern
from grpo_cli.commands.verify.causes.search import explains
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.together import Beside, Flags, besides
from grpo_cli.commands.verify.verdict import Verdict, compared, deciding, read_expectations
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan


@dataclass(eq=False)
class Company:
    """Records alike that differ, evaluated together.

    Attributes:
        records: the records.
        plan, tolerance: what they were judged by.
    """

    records: Sequence[Record]
    plan: Plan
    tolerance: Tolerance

    def __post_init__(self) -> None:
        self._known: list[tuple[Cause, Flags]] = []
        self._cases: dict[int, Case] = {}

    def case(self, at: int) -> Case:
        """One of the records, alone."""
        if at not in self._cases:
            breakdown, columns, _ = compared(self.records[at], self.plan)
            case = Case(self.records[at], breakdown, deciding(columns), self.tolerance)
            if at not in (0, len(self.records) - 1):
                return case
            self._cases[at] = case  # those are asked for again and again
        return self._cases[at]

    def explains(self, cause: Cause, at: int) -> bool:
        """Whether a cause surely explains a record."""
        known = next((fits for one, fits in self._known if one is cause), None)
        if known is None:
            known = self._fits(cause)
            self._known.append((cause, known))
        return bool(known[at])

    @cached_property
    def breakdown(self) -> Breakdown | None:
        """What they evaluate to; None where they cannot be, together."""
        try:
            return Evaluator(self.plan).evaluate(Chunk.of(self.records))
        except GrpoError:
            return None

    @cached_property
    def _columns(self) -> list[Beside] | None:
        if self.breakdown is None or len(self.records) < 3:
            return None
        wanted = [read_expectations(record)[0] for record in self.records]
        return besides(self.records, wanted, self.breakdown, self.tolerance)

    def _fits(self, cause: Cause) -> Flags:
        none = np.zeros(len(self.records), dtype=np.bool_)
        columns, breakdown = self._columns, self.breakdown
        if columns is None or breakdown is None:
            return none
        try:
            again = cause.evaluate(Case(self.records[0], breakdown, (), self.tolerance))
            if not self._as_alone(cause, columns, again):
                return none
            fits = ~none
            for column in columns:
                found = column.found(again)
                fits &= ~column.any(~column.near(found, self.tolerance, 0.999))
            return fits
        except IMPOSSIBLE:
            return none

    def _as_alone(self, cause: Cause, columns: Sequence[Beside], again: Breakdown) -> bool:
        """Whether the cause gives the first and the last what it gives each of them alone."""
        for at in (0, len(self.records) - 1):
            case = self.case(at)
            alone = cause.evaluate(case)
            for column in columns:
                ours = column.found(again)[column.owner == at]
                theirs = column.of.of(alone)
                if theirs is None or theirs.shape != ours.shape:
                    return False
                if not np.allclose(ours, theirs, rtol=1e-9, atol=1e-12, equal_nan=True):
                    return False
        return True


@dataclass(frozen=True, eq=False)
class Asked:
    """One of a company: why does it differ?"""

    company: Company
    at: int

    @property
    def objective(self) -> Objective:
        """What it was evaluated as."""
        together = self.company.breakdown
        return self.case.objective if together is None else together.objective

    @cached_property
    def case(self) -> Case:
        """The record alone."""
        return self.company.case(self.at)

    def explained_by(self, cause: Cause) -> bool:
        """Whether it expects what it would give with this mistake."""
        return self.company.explains(cause, self.at) or explains(cause, self.case)


Search = Callable[[Asked], list[Cause] | None]
"""The causes of a record that differs; None where none was searched for."""


def explained(verdict: Verdict, asked: Asked, search: Search) -> Verdict:
    """A verdict on a record that differs, with why it does, or what is known of that.

    Args:
        verdict: what ``judge`` said.
        asked: the record.
        search: what finds the causes.
    """
    with np.errstate(all="ignore"):  # what is tried need not make sense for this record
        found = search(asked)
        said = pattern(asked.case) if found == [] else ""
        return replace(verdict, causes=tuple(found or ()), pattern=said)
