"""A plan on chunks of records: what it makes of each, and the batch statistics that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError
from grpo_cli.objective import pipeline, statistics
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MisnamedColumnError, refuse_misnamed
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Evaluator:
    """Evaluates chunks for a plan.

    Attributes:
        plan: which objective.
        measured: the statistics of the whole input from a first pass, where the plan wants one.
    """

    plan: Plan
    measured: ExactMoments | None = None

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
        return self.plan.objective(chunk.settings, advantages_given=chunk.advantages_given)

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

    def refuse_misnamed(self, chunk: Chunk) -> None:
        """Stops where the plan needs log-probs that records may have under another name.

        Raises:
            MisnamedColumnError: with the key, and how it is read.
        """
        try:
            refuse_misnamed(chunk.batch, self.objective(chunk))
        except MisnamedColumnError:
            raise
        except InputError:
            return  # a hyperparameter is missing, which is told where the plan is evaluated


def without_misnamed(
    parts: Iterable[Chunk | InputError], *evaluators: Evaluator | None
) -> Iterator[Chunk | InputError]:
    """The chunks, with errors in the place of records whose misnamed column a plan needs.

    A plan that lacks a column is set aside among several; one whose column is there is not.
    """

    def check(chunk: Chunk) -> None:
        for evaluator in filter(None, evaluators):
            evaluator.refuse_misnamed(chunk)

    for part in parts:
        if isinstance(part, InputError) or not part.batch.misnamed:
            yield part
        else:
            each = part.each(check)
            yield from (one if isinstance(one, InputError) else one[0] for one in each)
