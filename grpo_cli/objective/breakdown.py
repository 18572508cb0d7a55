"""What the pipeline leaves: every number of every token, response and record of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.objective.results import Weights

if TYPE_CHECKING:
    from grpo_cli.objective.objective import Objective


class Term(NamedTuple):
    """One of the two sums of J: the policy term Σ w·c·s, or the KL term Σ w′·k.

    Attributes:
        weights: the aggregation's weights of this term.
        sums: [R] Σ over each response's tokens, unweighted.
        slope: [N] ∂(that sum)/∂(log π_θ) of each token, unweighted.
    """

    weights: Weights
    sums: F64
    slope: F64

    @property
    def factor(self) -> F64:
        """[R] the weight without the denominator that counts."""
        return self.weights.unit / self.weights.divisor

    @property
    def weighted(self) -> F64:
        """[R] the sums times ``factor``."""
        return self.factor * self.sums


@dataclass(eq=False)
class Breakdown:
    """J = Σₜ wₜ·cₜ·sₜ − β·Σₜ w′ₜ·kₜ, taken apart. N tokens, R responses, M records.

    ``weight``, ``contribution``, ``gradient`` and everything of a record apply the aggregation to
    that record alone. Weights are per response, because no aggregation of the family tells two
    tokens of one response apart.

    Attributes:
        batch: what went in.
        objective: the bound stages that ran.
        advantage: [N] the advantage of each token.
        response_advantage: [R] the same where it is one per response, else None.
        log_ratio: [N] log ρ at the level of the ratio stage, nats.
        ratio: [N] ρ; inf where it exceeds the largest double.
        surrogate: [N] s, before correction and weight.
        clip: [N] int8, the side on which the clip bound the token: −1, 0 or 1.
        correction: [N] c, or None where nothing corrects (c = 1).
        kl: [N] k, or None where no KL was estimated.
        policy: the policy term.
        penalty: the KL term, or None where no KL was estimated.
        bonus: the entropy term, or None; J gains entropy_coef times it.
    """

    batch: Batch
    objective: Objective
    advantage: F64
    response_advantage: F64 | None
    log_ratio: F64
    ratio: F64
    surrogate: F64
    clip: NDArray[np.int8]
    correction: F64 | None
    kl: F64 | None
    policy: Term
    penalty: Term | None
    bonus: Term | None = None

    @property
    def beta(self) -> float:
        """β, or 0.0 where no KL is in the loss."""
        return self.objective.beta

    # ---- per record -------------------------------------------------------------------------

    def count(self, weights: Weights) -> F64:
        """[M] what the weights' denominator counts in each record; 1 where it counts nothing."""
        if weights.counts is None:
            return np.ones(self.batch.records.count)
        return self.batch.records.sum(weights.counts)

    @cached_property
    def record_tokens(self) -> I64:
        """[M] tokens of each record."""
        return self.batch.records.sum(self.batch.responses.lengths)

    @cached_property
    def record_groups(self) -> I64:
        """[M] groups of each record."""
        return np.bincount(self.group_record, minlength=self.batch.records.count)

    @cached_property
    def group_record(self) -> I64:
        """[groups] the record that each group belongs to."""
        owner = np.zeros(self.batch.group_count, dtype=np.int64)
        owner[self.batch.groups] = self.batch.records.index
        return owner

    @cached_property
    def denominator(self) -> F64:
        """[M] what each record's policy sum is divided by, besides a response's own part."""
        return self.policy.weights.divisor * self.count(self.policy.weights)

    @cached_property
    def record_policy(self) -> F64:
        """[M] Σ w·c·s of each record."""
        return self._record_sum(self.policy)

    @cached_property
    def record_kl(self) -> F64:
        """[M] Σ w′·k of each record; 0 where no KL was estimated."""
        if self.penalty is None:
            return np.zeros(self.batch.records.count)
        return self._record_sum(self.penalty)

    @cached_property
    def record_entropy(self) -> F64:
        """[M] Σ w″·H of each record; 0 where no bonus is asked for."""
        if self.bonus is None:
            return np.zeros(self.batch.records.count)
        return self._record_sum(self.bonus)

    def _record_sum(self, term: Term) -> F64:
        counts = np.maximum(self.count(term.weights), 1)
        return record_sums(term.weighted, self.batch.records) / counts

    @cached_property
    def record_objective(self) -> F64:
        """[M] J of each record: policy − β·kl, and + entropy_coef·entropy with a bonus."""
        objective = self.record_policy
        if self.penalised:
            objective = objective - self.beta * self.record_kl
        if self.bonus is not None:
            objective = objective + self.objective.entropy_coef * self.record_entropy
        return objective

    # ---- per response -----------------------------------------------------------------------

    @cached_property
    def weight(self) -> F64:
        """[R] w of each response's tokens, for its record alone."""
        return self._weight(self.policy.weights)

    @cached_property
    def kl_weight(self) -> F64:
        """[R] w′ of each response's tokens, for its record alone."""
        if self.penalty is None or self.penalty.weights is self.policy.weights:
            return self.weight
        return self._weight(self.penalty.weights)

    def _weight(self, weights: Weights) -> F64:
        denominator = weights.divisor * np.maximum(self.count(weights), 1)
        return weights.unit / np.repeat(denominator, self.batch.records.lengths)

    @cached_property
    def response_contribution(self) -> F64:
        """[R] Σ of the contributions of each response's tokens."""
        part = self.weight * self.policy.sums
        if self.penalty is not None and self.penalised:
            part = part - self.beta * self.kl_weight * self.penalty.sums
        if self.bonus is not None:
            part = part + self._bonus_weight * self.bonus.sums
        return part

    @cached_property
    def _bonus_weight(self) -> F64:
        """[R] entropy_coef·w″."""
        assert self.bonus is not None
        return self.objective.entropy_coef * self._weight(self.bonus.weights)

    @property
    def counted(self) -> str:
        """What the denominator is, in words."""
        return self.policy.weights.of

    # ---- per token --------------------------------------------------------------------------

    @property
    def penalised(self) -> bool:
        """Whether the KL has a part in J."""
        return self.penalty is not None and self.beta != 0.0

    @cached_property
    def shared_weights(self) -> bool:
        """Whether both terms have the same weights, so that one slope serves both."""
        return not self.penalised or self.kl_weight is self.weight

    @cached_property
    def unit_slope(self) -> F64:
        """[N] ∂(Σ c·s − β·k)/∂(log π_θ) before any weight."""
        if self.penalty is None or not self.penalised:
            return self.policy.slope
        penalty = self.beta * self.penalty.slope
        return np.subtract(self.policy.slope, penalty, out=penalty)

    @cached_property
    def token_weight(self) -> F64:
        """[N] w of each token."""
        return np.repeat(self.weight, self.batch.responses.lengths)

    @cached_property
    def contribution(self) -> F64:
        """[N] w·c·s − β·w′·k (and the bonus); a record's contributions add up to its objective."""
        policy = self.surrogate if self.correction is None else self.correction * self.surrogate
        part = self.token_weight * policy
        lengths = self.batch.responses.lengths
        if self.kl is not None and self.penalised:
            part = part - self.beta * np.repeat(self.kl_weight, lengths) * self.kl
        if self.bonus is not None and self.batch.entropies is not None:
            part = part + np.repeat(self._bonus_weight, lengths) * self.batch.entropies
        return part

    @cached_property
    def gradient(self) -> F64:
        """[N] ∂J/∂(log π_θ), J being the record's own objective."""
        if self.shared_weights or self.penalty is None:
            return self.token_weight * self.unit_slope
        kl_weight = np.repeat(self.kl_weight, self.batch.responses.lengths)
        return self.token_weight * self.policy.slope - self.beta * kl_weight * self.penalty.slope


def record_sums(values: F64, records: Segments) -> F64:
    """[M] the exactly rounded sum of each record's values [R], whatever their order."""
    if records.count == len(values):
        return values
    flat = values.tolist()
    sums = []
    start = 0
    for length in records.lengths.tolist():
        sums.append(_sum(flat[start : start + length]))
        start += length
    return np.array(sums)


def _sum(parts: list[float]) -> float:
    try:
        return math.fsum(parts)
    except (OverflowError, ValueError):  # too large, or infinite both ways
        return sum(parts)
