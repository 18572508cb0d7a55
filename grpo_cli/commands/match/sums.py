"""Per-response sums over the data, of which any convention's value is a dot product.

J = Σᵢ wᵢ·(Pᵢ − β·Kᵢ), with P and K sums over the tokens of response i and w its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.objective.terms import ENTROPY, KL, POLICY
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan

_GIVEN = STAGES["advantage"].choices["given"]


@dataclass(eq=False)
class Data:
    """The chunks of the input, kept, and how many responses and records they have."""

    chunks: Sequence[Chunk]

    @property
    def responses(self) -> int:
        """All responses."""
        return sum(chunk.batch.responses.count for chunk in self.chunks)

    @property
    def records(self) -> int:
        """All records."""
        return sum(chunk.batch.records.count for chunk in self.chunks)

    def each(self, plan: Plan, read: Callable[[Breakdown], F64]) -> F64:
        """[R] what ``read`` finds in the breakdown of each chunk.

        Raises:
            InputError: where the data cannot serve the plan.
        """
        evaluator = self.evaluator(plan)
        return np.concatenate([read(chunk.run(evaluator.evaluate)) for chunk in self.chunks])

    def evaluator(self, plan: Plan) -> Evaluator:
        """The plan with the statistics of all chunks, where it wants some."""
        evaluator = Evaluator(plan)
        if not evaluator.wants_first_pass:
            return evaluator
        moments = ExactMoments()
        for chunk in self.chunks:
            moments.merge(chunk.run(evaluator.measure))
        return replace(evaluator, measured=moments)


def advantages(data: Data, plan: Plan) -> F64 | None:
    """[R] the advantages; None where they differ within a response."""
    per_token = False

    def read(breakdown: Breakdown) -> F64:
        nonlocal per_token
        if breakdown.response_advantage is None:
            per_token = True
            return np.zeros(breakdown.batch.responses.count)
        return breakdown.response_advantage

    found = data.each(plan, read)
    return None if per_token else found


def from_sides(sides: tuple[F64, F64], advantage: F64) -> F64:
    """[R] Σ c·s for advantages [R], from the sums for A = 1 and A = −1."""
    scaled = np.abs(advantage) * np.where(advantage > 0, *sides)
    return np.where(advantage != 0, scaled, 0.0)


def direct(data: Data, plan: Plan) -> F64:
    """[R] Σ c·s, evaluated."""
    return data.each(plan, lambda breakdown: breakdown.policy.sums)


def sides(data: Data, plan: Plan) -> tuple[F64, F64] | None:
    """[R] Σ c·s with A = 1 and with A = −1; None for a surrogate not homogeneous in A.

    Raises:
        GrpoError: where the data cannot serve the surrogate.
    """
    objective = _given(Evaluator(plan).objective(data.chunks[0]))
    if not _homogeneous(objective):
        return None
    above, below = (_side(data, plan, size) for size in (1.0, -1.0))
    return above, below


def _side(data: Data, plan: Plan, size: float) -> F64:
    found = []
    for chunk in data.chunks:
        objective = _given(Evaluator(plan).objective(chunk))
        advantages = np.full(chunk.batch.responses.count, size)
        batch = replace(chunk.batch, advantages=advantages, token_advantages=None)
        found.append(evaluate(batch, objective).policy.sums)
    return np.concatenate(found)


def _homogeneous(objective: Objective) -> bool:
    """Whether s(ρ, |A|·sign A) = |A|·s(ρ, sign A) on the probe, and J has no other use of A."""
    batch = probe.probe()
    signs = np.where(np.arange(batch.responses.count) % 2 == 0, 1.0, -1.0)
    sizes = 0.3 + np.arange(batch.responses.count)
    try:
        one = evaluate(replace(batch, advantages=signs), objective).policy.sums
        more = evaluate(replace(batch, advantages=signs * sizes), objective).policy.sums
    except (InputError, HyperparameterError):
        return False
    return bool(np.allclose(more, one * sizes, rtol=1e-9, atol=1e-12))


def _given(objective: Objective) -> Objective:
    given = replace(objective.advantage, name="given", choice=_GIVEN, values={})
    return replace(objective, advantage=given)


def penalties(data: Data, plan: Plan) -> F64:
    """[R] β·Σ k."""

    def read(breakdown: Breakdown) -> F64:
        term = breakdown.term(KL)
        if term is None or not term.active:
            return np.zeros(breakdown.batch.responses.count)
        return breakdown.beta * term.sums

    return data.each(plan, read)


def weights(data: Data, plan: Plan, name: str = POLICY) -> F64 | None:
    """[R] the weight of each response's sum of a term in the batch's J; None without the term."""
    counted = 0.0

    def read(breakdown: Breakdown) -> F64:
        nonlocal counted
        term = breakdown.term(name)
        if term is None:
            return np.full(breakdown.batch.responses.count, np.nan)
        counted += term.counted
        return breakdown.term_weight(term) if plan.batch == "record" else term.factor

    factors = data.each(plan, read)
    if np.isnan(factors).any():
        return None
    return factors / (max(data.records, 1) if plan.batch == "record" else counted or 1.0)


def bonuses(data: Data, plan: Plan) -> F64:
    """[R] entropy_coef·Σ H."""

    def read(breakdown: Breakdown) -> F64:
        term = breakdown.term(ENTROPY)
        if term is None:
            return np.zeros(breakdown.batch.responses.count)
        return term.coefficient * term.sums

    return data.each(plan, read)
