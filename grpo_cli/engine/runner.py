"""Evaluates the pieces of a source for several plans at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_cli.engine.batches import Piece
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective import statistics
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.variants.plan import Plan


class Unserved(Exception):  # noqa: N818 - not a failure: the data says no
    """A plan that the data cannot serve; ``reason`` says where and why."""

    def __init__(self, reason: InputError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(eq=False)
class Runner:
    """One plan, and the batch statistics that it needs, once they are ``measured``."""

    plan: Plan
    measured: ExactMoments | None = None

    @property
    def wants_moments(self) -> bool:
        """Whether a first pass over the data is needed."""
        return self.plan.batch == "input" and self.plan.wants_moments

    def objective(self, piece: Piece) -> Objective:
        """The objective for the records of a piece."""
        settings = piece.records[0].hyperparameters
        return self.plan.objective(settings, advantages_given=piece.advantages_given)

    def measure(self, piece: Piece) -> None:
        """Adds a piece to the statistics of the whole input."""
        self.measured = self.measured or ExactMoments()
        try:
            objective = self.objective(piece)
            if statistics.wanted(objective):
                self.measured.add(statistics.sample(piece.batch, objective))
        except (InputError, HyperparameterError) as error:
            raise Unserved(piece.located(error)) from None

    def run(self, piece: Piece) -> Breakdown:
        """Evaluates a piece.

        Raises:
            Unserved: where the records lack what the plan needs.
        """
        try:
            objective = self.objective(piece)
            return evaluate(piece.batch, objective, self.measured)
        except (InputError, HyperparameterError) as error:
            raise Unserved(piece.located(error)) from None


def measure(runners: Sequence[Runner], pieces: Iterable[Piece]) -> dict[Runner, InputError]:
    """The first pass, for the plans that need one; returns those that the data cannot serve."""
    failed: dict[Runner, InputError] = {}
    wanting = [runner for runner in runners if runner.wants_moments]
    if not wanting:
        return failed
    for piece in pieces:
        for runner in [one for one in wanting if one not in failed]:
            try:
                runner.measure(piece)
            except Unserved as unserved:
                failed[runner] = unserved.reason
    return failed
