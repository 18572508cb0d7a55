"""A record that differs, what it expects, and what can be tried on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.verify.compare import Column, Tolerance
from grpo_cli.errors import GrpoError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.records import Record
from grpo_cli.variants import bind


@dataclass(frozen=True, eq=False)
class Case:
    """One record that differs.

    Attributes:
        record: the record.
        breakdown: what it evaluates to.
        columns: everything that it expects and that the objective has.
        tolerance: when two numbers agree.
    """

    record: Record
    breakdown: Breakdown
    columns: Sequence[Column]
    tolerance: Tolerance

    @property
    def batch(self) -> Batch:
        """The record's columns."""
        return self.breakdown.batch

    @property
    def objective(self) -> Objective:
        """What it was evaluated as."""
        return self.breakdown.objective

    @cached_property
    def gradient(self) -> F64 | None:
        """[N] ∂J/∂(log π_θ) as expected at every token; None where that is not told."""
        for column in self.columns:
            key, told = column.of.key, np.isfinite(column.values)
            if column.of.level == "token" and key in ("gradient", "loss_gradient") and told.all():
                return column.values if key == "gradient" else -column.values
        return None

    @cached_property
    def loss(self) -> float | None:
        """The objective J that is expected; None where that is not told."""
        for column in self.columns:
            if column.of.key in ("loss", "objective") and np.isfinite(column.values[0]):
                value = float(column.values[0])
                return value if column.of.key == "objective" else -value
        return None

    @cached_property
    def quiet(self) -> float:
        """What a gradient is no larger than where it is 0 but for rounding."""
        return 1e-4 * float(np.abs(self.breakdown.gradient).max(initial=0.0))

    def near(self, found: F64, expected: F64) -> NDArray[np.bool_]:
        """Which numbers agree, on the scale of the largest expected."""
        size = float(np.abs(expected).max(initial=0.0))
        return np.abs(found - expected) <= max(self.tolerance.rtol, 1e-6) * size

    def agrees(self, again: Breakdown) -> bool:
        """Whether another evaluation gives all that is expected."""
        return all(self._fits(column, again) for column in self.columns)

    def _fits(self, column: Column, again: Breakdown) -> bool:
        found = column.of.of(again)
        if found is None:
            return False
        if len(found) == len(column.of.values) > len(column.values):
            assert self.record.mask is not None
            found = found[np.frombuffer(self.record.mask, dtype=np.bool_)]
        if len(found) != len(column.values):
            return False
        return bool(self.tolerance.agree(column, found).all())

    # ---- other evaluations --------------------------------------------------------------------

    def evaluated(self, batch: Batch | None = None, /, **stages: Bound | None) -> Breakdown:
        """The record with other data, or with other stages."""
        objective = replace(self.objective, **stages) if stages else self.objective  # type: ignore[arg-type]
        return evaluate(self.batch if batch is None else batch, objective)

    def judged(self, advantages: F64) -> Breakdown:
        """The record with other advantages, [R] or [N]."""
        per_token = len(advantages) != self.batch.responses.count
        batch = replace(
            self.batch,
            advantages=None if per_token else advantages,
            token_advantages=advantages if per_token else None,
        )
        return self.evaluated(batch, advantage=_GIVEN)

    @cached_property
    def without_policy(self) -> Breakdown:
        """The record with all advantages 0: what is left is the KL."""
        return self.judged(np.zeros(self.batch.responses.count))

    @cached_property
    def policy_gradient(self) -> F64:
        """[N] the part of the gradient that the policy term has."""
        return self.breakdown.gradient - self.without_policy.gradient

    @cached_property
    def expected_policy_gradient(self) -> F64 | None:
        """[N] what is expected of it, if the KL is right."""
        if self.gradient is None:
            return None
        return self.gradient - self.without_policy.gradient


_GIVEN = bind("advantage", "given")


class Cause(NamedTuple):
    """A mistake: the stage it belongs to, what it is called, and what the record gives with it."""

    stage: str
    words: str
    evaluate: Callable[[Case], Breakdown]


IMPOSSIBLE = (GrpoError, ArithmeticError, LookupError, TypeError, ValueError)
"""What says that a mistake cannot have been made on a record."""

Source = Callable[[Case], Iterator[Cause]]


def round_number(value: float) -> bool:
    """Whether somebody may have typed it."""
    return abs(value - float(f"{value:.2g}")) <= 1e-4 * abs(value)


def swapped(stage: str, words: str, bound: Bound) -> Cause:
    """A mistake that is another choice at a stage."""
    stages = {stage: bound, "kl_aggregate": None} if stage == "aggregate" else {stage: bound}
    return Cause(stage, words, lambda case: case.evaluated(None, **stages))
