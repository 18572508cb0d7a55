"""The exact totals of a few plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.match.sums.data import Data
from grpo_cli.commands.match.sums.edges import merged
from grpo_cli.commands.match.sums.terms import Terms
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import References
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.breakdown import record_sums
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Weights
from grpo_cli.objective.terms import ENTROPY, KL, POLICY


@dataclass
class Exact(Totals):
    """Totals, how far the ratios go on either side, and which records have a reference."""

    reached: F64 | None = None
    references: References = field(default_factory=References)

    def reach(self, other: F64) -> None:
        """Adds what the ratios of other records reach."""
        self.reached = other if self.reached is None else merged(self.reached, other)

    def merge(self, other: Totals) -> None:
        """Adds the totals of other records.

        Raises:
            InputError: where only some of the records have a reference that the plan needs.
        """
        super().merge(other)
        if isinstance(other, Exact):
            self.references.merge(other.references)
            self.references.check()
            if other.reached is not None:
                self.reach(other.reached)

    def add_terms(self, work: Terms, evaluator: Evaluator, chunk: Chunk) -> None:
        """Adds J's terms alone: the sums that ``add`` makes of a breakdown, to the bit."""
        objective = work.objective(evaluator.plan)
        policy = work.policy(objective, evaluator.measured)
        self._weighted(POLICY, 1.0, policy, work.weight(objective, "aggregate"), chunk.batch)
        has_kl = objective.has_kl and not objective.kl_in_reward
        if has_kl:
            weights = work.weight(objective, _own(objective, "kl_aggregate"))
        if has_kl and not objective.beta:
            self._term(KL).counted += weights.counted()
        elif has_kl:
            self._weighted(KL, -objective.beta, work.kl(objective), weights, chunk.batch)
        if objective.entropy is not None:
            weights = work.weight(objective, _own(objective, "entropy_aggregate"))
            if objective.entropy_coef:
                sums = work.entropy(objective)
                self._weighted(ENTROPY, objective.entropy_coef, sums, weights, chunk.batch)
            else:
                self._term(ENTROPY).counted += weights.counted()
        self.records += chunk.batch.records.count
        self.signatures.setdefault(objective.signature, objective.parts)

    def _weighted(
        self, name: str, coefficient: float, sums: F64, weights: Weights, batch: Batch
    ) -> None:
        total = self._term(name)
        values = (weights.numerator / weights.divisor) * sums
        if self.batch == "record":
            counts = np.ones(batch.records.count)
            if weights.counts is not None:
                counts = np.maximum(batch.records.sum(weights.counts), 1)
            total.add(coefficient, record_sums(values, batch.records) / counts)
            return
        total.add(coefficient, values)
        total.counted += 0.0 if weights.counts is None else float(weights.counts.sum())


def _own(objective: Objective, stage: str) -> str:
    return "aggregate" if getattr(objective, stage) is None else stage


Likely = Mapping[str, Exact | None]
"""The totals of evaluators by their words."""
Found = dict[int, Exact | None]
"""The totals of plans by their number; None where one cannot be evaluated."""


@dataclass(frozen=True)
class Exactly:
    """Adds up the totals of plans, chunk by chunk.

    Attributes:
        evaluators: of which plans.
        everything: whether numbers beside J and its terms are wanted.
        reaching: whether it is wanted how far the ratios go.
    """

    evaluators: Sequence[Evaluator]
    everything: bool
    reaching: bool

    def __call__(self, chunk: Chunk, into: Found) -> None:
        """Adds a chunk's records."""
        work = Terms(chunk)
        for at, evaluator in enumerate(self.evaluators):
            totals = into[at]
            if totals is None:
                continue
            try:
                totals.references.add(chunk, evaluator.plan, work.objective(evaluator.plan))
                totals.references.check()
                with np.errstate(all="ignore"):
                    if self.everything or work.drops(evaluator):
                        totals.add(evaluator.evaluate(chunk))
                    else:
                        totals.add_terms(work, evaluator, chunk)
                    if self.reaching:
                        objective = work.objective(evaluator.plan)
                        totals.reach(work.reached(objective, evaluator.measured))
            except GrpoError:
                into[at] = None

    def zero(self) -> Found:
        """Of no record."""
        return {at: Exact(one.plan.batch) for at, one in enumerate(self.evaluators)}


def exactly(
    evaluators: Sequence[Evaluator], data: Data, *, everything: bool, reaching: bool
) -> list[Exact | None]:
    """The totals that ``grpo eval`` gives, to the bit; None where it gives an error.

    Args:
        evaluators: of which plans.
        data: the records.
        everything: whether numbers beside J and its terms are wanted.
        reaching: whether it is wanted how far the ratios go.
    """
    work = Exactly(evaluators, everything, reaching)
    found = work.zero()
    for part in data.fold(work, work.zero) if evaluators else ():
        merge(found, part)
    return [found[at] for at in range(len(evaluators))]


def merge(found: Found, part: Found) -> None:
    """Adds the totals of other records."""
    for at, totals in part.items():
        known = found[at]
        found[at] = None
        if known is not None and totals is not None:
            with suppress(InputError):
                known.merge(totals)
                found[at] = known
