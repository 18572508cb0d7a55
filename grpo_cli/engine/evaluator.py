"""A plan on chunks of records: what it makes of each, and the batch statistics that it needs."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective import pipeline, statistics
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Evaluator:
    """Evaluates chunks for a plan.

    Attributes:
        plan: which objective.
        measured: the statistics of the whole input from a first pass, where the plan wants one.
        needs_reference: whether a KL is never left out, since other records have a reference.
    """

    plan: Plan
    measured: ExactMoments | None = None
    needs_reference: bool = False

    @property
    def wants_first_pass(self) -> bool:
        """Whether the objective needs statistics of the whole input before it can begin."""
        return self.plan.batch == "input" and self.plan.wants_moments

    @property
    def words(self) -> str:
        """The objective in words, with the statistics that it was given: equal where it is."""
        plan = self.plan
        chosen = {**plan.swapped, **plan.flags}
        words = [plan.variant, *(f"{name}={chosen[name]!r}" for name in sorted(chosen))]
        if self.measured is not None:
            words.append(f"measured={self.measured.read()}")
        return " ".join(words)

    def objective(self, chunk: Chunk) -> Objective:
        """The objective of a chunk's records."""
        return chunk.objective(self.plan, reference_given=self.needs_reference or None)

    def measure(self, chunk: Chunk) -> ExactMoments:
        """A chunk's part of the statistics of the whole input."""
        moments = ExactMoments()
        objective = self.objective(chunk)
        if statistics.wanted(objective):
            moments.add(statistics.sample(chunk.batch, objective))
        return moments

    def evaluate(self, chunk: Chunk) -> Breakdown:
        """The chunk's breakdown.

        Raises:
            InputError: where the records lack what the plan needs; ``Chunk.run`` says which.
            HyperparameterError: where a value cannot be used with their groups.
        """
        return pipeline.evaluate(chunk.batch, self.objective(chunk), self.measured)
