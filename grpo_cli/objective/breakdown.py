"""What the pipeline leaves: every number of every token, response and record of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments, count_turns
from grpo_cli.objective.arithmetic.exact_sums import segment_sums
from grpo_cli.objective.results import Weights
from grpo_cli.objective.terms import KL, POLICY, GradientPart, Term, gradient_parts, spread_over

if TYPE_CHECKING:
    from grpo_cli.objective.objective import Objective


@dataclass(eq=False)
class Breakdown:
    """The parts of J = Σ over ``terms`` of coefficient·Σₜ wₜ·valueₜ.

    N tokens in R responses in M records.

    ``weight``, ``contribution`` and ``gradient`` are of the batch that a record belongs to: with
    D the denominator that counts, they are those of the record alone times D_record / D_batch.
    What begins with ``record_`` applies the aggregation to each record alone. Weights are per
    response: aggregations weigh the tokens of one response alike, but for ``Weights.tokens``.

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
        kept: [N] bool, the tokens that no correction takes out of the policy term's denominator;
            None where it takes out none.
        terms: the policy term, the KL where one was estimated, the entropy bonus where asked for.
        absent: the weights of a KL or an entropy bonus that the objective has and these records
            lack, their coefficient being 0: they count in a batch of which others have the term.
        denominators: term → [M] what its weights count over the batch of each record; None where
            each record is a batch of its own.
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
    kept: NDArray[np.bool_] | None
    terms: tuple[Term, ...]
    absent: Mapping[str, Weights] = field(default_factory=dict)
    denominators: Mapping[str, F64] | None = None

    # ---- the terms --------------------------------------------------------------------------

    @property
    def policy(self) -> Term:
        """Σ w·c·s."""
        return self.terms[0]

    def term(self, name: str) -> Term | None:
        """The term of that name, or None where the objective has none or cannot estimate it."""
        return next((term for term in self.terms if term.name == name), None)

    @property
    def active(self) -> list[Term]:
        """The terms that have a part in J."""
        return [term for term in self.terms if term.active]

    @cached_property
    def gradient_parts(self) -> list[GradientPart]:
        """The gradient, one part for each set of weights; nearly always there is one."""
        return [*gradient_parts(self.terms, self.batch)]

    @property
    def kl(self) -> F64 | None:
        """[N] k, or None where no KL was estimated."""
        term = self.term(KL)
        return None if term is None else term.values

    @cached_property
    def kl_unknown(self) -> bool:
        """Whether the objective has a KL that could not be estimated (β = 0, no reference)."""
        return self.term(KL) is None and self.objective.has_kl

    @property
    def beta(self) -> Any:
        """β, or 0.0 where no KL is in the loss; [M] where records differ in it."""
        return 0.0 - self.objective.kl_coefficient

    @property
    def counted(self) -> str:
        """What the denominator is, in words."""
        return self.policy.weights.of

    # ---- what a batch adds up ---------------------------------------------------------------

    @cached_property
    def weighted(self) -> Mapping[str, F64]:
        """Term → [R] its sums times ``Weights.factor``."""
        return {term.name: term.weighted() for term in self.terms}

    @cached_property
    def counted_before(self) -> Mapping[str, F64]:
        """Term → [R + 1] what the responses before each add to the denominator that counts.

        Whole numbers, so that differences are exact; of the terms that are absent as well.
        """
        found = {term.name: term.weights.counts for term in self.terms}
        found |= {name: weights.counts for name, weights in self.absent.items()}
        none = np.zeros(self.batch.responses.count + 1)
        before = {
            id(one): np.cumsum(np.append(0.0, one)) for one in found.values() if one is not None
        }
        return {
            name: none if counts is None else before[id(counts)] for name, counts in found.items()
        }

    # ---- per record -------------------------------------------------------------------------

    def count(self, weights: Weights) -> F64:
        """[M] what the weights' denominator counts in each record; 1 where it counts nothing."""
        if weights.counts is None:
            return np.ones(self.batch.records.count)
        return self.batch.records.sum(weights.counts)

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
        """[M] what each record's policy sum is divided by, without a response's own part."""
        divisor, records = self.policy.weights.divisor, self.batch.records
        if isinstance(divisor, np.ndarray):
            divisor = divisor[records.starts]
        return divisor * self.count(self.policy.weights)

    @cached_property
    def record_values(self) -> Mapping[str, F64]:
        """Term → [M] its Σ w·value in each record."""
        return {
            term.name: record_sums(self.weighted[term.name], self.batch.records)
            / np.maximum(self.count(term.weights), 1)
            for term in self.terms
        }

    def record_value(self, name: str) -> F64:
        """[M] Σ w·value of a term in each record; 0 where there is no such term."""
        found = self.record_values.get(name)
        return np.zeros(self.batch.records.count) if found is None else found

    @cached_property
    def record_objective(self) -> F64:
        """[M] J of each record."""
        values = self.record_values
        return _sum_of([term.coefficient * values[term.name] for term in self.active])

    @cached_property
    def record_gradient(self) -> F64:
        """[N] ∂J/∂(log π_θ), J being the record's own objective."""
        return self._gradient(None)

    # ---- per response -----------------------------------------------------------------------

    @cached_property
    def weight(self) -> F64:
        """[R] w of each response's tokens in the policy term."""
        return self._weight(self.policy.name, self.policy.weights, self.denominators)

    def term_weight(self, term: Term) -> F64:
        """[R] the same for any term."""
        if term.weights is self.policy.weights:
            return self.weight
        return self._weight(term.name, term.weights, self.denominators)

    def _weight(self, term: str, weights: Weights, denominators: Mapping[str, F64] | None) -> F64:
        if denominators is None:
            counted = np.maximum(self.count(weights), 1)
        else:
            counted = denominators.get(term, np.ones(self.batch.records.count))
        spread = np.repeat(counted, self.batch.records.lengths)
        return weights.numerator / (weights.divisor * spread)

    def _of_responses(self, term: Term) -> float | F64:
        """A term's coefficient, [R] where records differ in it."""
        return spread_over(term.coefficient, self.batch.records)

    @cached_property
    def response_contribution(self) -> F64:
        """[R] Σ of the contributions of each response's tokens."""
        return _sum_of(
            [
                (self._of_responses(term) * self.term_weight(term)) * term.sums
                for term in self.active
            ]
        )

    @cached_property
    def record_scale(self) -> F64:
        """[M] Σ |contribution| of each record: what may cancel in its J, and its rounding.

        Over its tokens, and its responses without tokens where those have a term of their own.
        """
        lengths = self.batch.responses.lengths
        empty = np.where(lengths > 0, 0.0, np.abs(self.response_contribution))
        sums = self.batch.responses.sum(np.abs(self.contribution))
        return self.batch.records.sum(sums + empty)

    @cached_property
    def kl_scale(self) -> F64:
        """[R] β·w′ of each response: the size of what cancels in a KL of two policies alike.

        k3 = eˣ − x − 1 and its slope are differences of ones, which leave their rounding where x
        is next to 0.
        """
        term = self.term(KL)
        if term is None or not term.active:
            return np.zeros(self.batch.responses.count)
        return np.abs(self._of_responses(term) * self.term_weight(term))

    # ---- per token --------------------------------------------------------------------------

    @cached_property
    def _spread_weight(self) -> F64:
        return np.repeat(self.weight, self.batch.responses.lengths)

    @cached_property
    def token_weight(self) -> F64:
        """[N] w of each token in the policy term."""
        return self.policy.weights.times_own(self._spread_weight)

    @cached_property
    def contribution(self) -> F64:
        """[N] Σ over terms of coefficient·w·value; those of a batch add up to its objective."""
        return _sum_of([self._contribution(term) for term in self.active])

    def _contribution(self, term: Term) -> F64:
        if term is self.policy:
            return self.token_weight * term.values
        weight = self._of_responses(term) * self.term_weight(term)
        spread = np.repeat(weight, self.batch.responses.lengths)
        return term.weights.times_own(spread) * term.values

    @cached_property
    def gradient(self) -> F64:
        """[N] ∂J/∂(log π_θ), J being the objective of the record's batch."""
        return self._gradient(self.denominators)

    def _gradient(self, denominators: Mapping[str, F64] | None) -> F64:
        parts = []
        for part in self.gradient_parts:
            shared = part.weights is self.policy.weights and not part.is_scaled
            if shared and denominators is self.denominators:
                parts.append(self._spread_weight * part.slope)
            else:
                weight = self._weight(part.name, part.weights, denominators)
                parts.append(part.spread(weight, self.batch.responses))
        return _sum_of(parts) if parts else np.zeros(self.batch.responses.total)

    # ---- counts and norms: no sum depends on what else is evaluated with it --------------------

    @cached_property
    def turn_counts(self) -> I64:
        """[R] the turns of each response."""
        return count_turns(self.batch.responses, self.batch.turns)

    @cached_property
    def trajectory_firsts(self) -> NDArray[np.bool_]:
        """[R] whether each is the first response of its trajectory."""
        trajectories = self.batch.trajectories
        found = np.ones(self.batch.responses.count, dtype=np.bool_)
        if trajectories is not None:
            found[1:] = np.diff(np.maximum.accumulate(trajectories)) > 0
        return found

    @cached_property
    def ratio_sums(self) -> F64:
        """[R] Σ ρ of each response; inf where it is too large for a double."""
        with np.errstate(over="ignore"):
            return self.batch.responses.sum(self.ratio)

    @property
    def shared(self) -> bool:
        """Whether one set of weights serves all the terms that have a gradient."""
        parts = self.gradient_parts
        return len(parts) == 1 and not parts[0].is_scaled

    @cached_property
    def gradient_squares(self) -> F64:
        """[R] Σ (∂J/∂log π_θ)² of each response, J being its record's objective times its count.

        That is: without the denominator that counts responses, tokens or groups, which a record
        and a batch each put in for themselves. Only where all terms share their weights.
        """
        (part,) = self.gradient_parts
        with np.errstate(over="ignore"):
            factor = np.square(part.weights.factor())
            return factor * self.batch.responses.sum(part.slope * part.slope)

    @cached_property
    def products(self) -> list[tuple[str, str, F64]]:
        """[R] the parts of ‖Σ g_part/D_part‖², each part of the gradient having a denominator D."""
        if self.shared:
            return [(POLICY, POLICY, self.gradient_squares)]
        parts = self.gradient_parts
        gradients = [(part.name, part.without_count(self.batch.responses)) for part in parts]
        return [
            (name, other, self.batch.responses.sum(gradient * another))
            for at, (name, gradient) in enumerate(gradients)
            for other, another in gradients[at:]
        ]

    @cached_property
    def record_gradient_squares(self) -> F64:
        """[M] ‖∂J/∂log π_θ‖² of each record."""
        with np.errstate(over="ignore"):
            if self.shared:
                (part,) = self.gradient_parts
                counts = np.maximum(self.count(part.weights), 1)
                return record_sums(self.gradient_squares, self.batch.records) / (counts * counts)
            squares = self.batch.responses.sum(np.square(self.record_gradient))
            return record_sums(squares, self.batch.records)

    @cached_property
    def response_gradient_norms(self) -> F64:
        """[R] ‖∂J/∂log π_θ‖ over each response's tokens."""
        with np.errstate(over="ignore"):
            return np.sqrt(self.batch.responses.sum(np.square(self.gradient)))

    @cached_property
    def dead(self) -> NDArray[np.bool_]:
        """[groups] whether every advantage of a group is 0."""
        found = np.ones(self.batch.group_count, dtype=np.bool_)
        advantage = self.response_advantage
        if advantage is None:
            advantage = self.batch.responses.sum(self.advantage != 0.0)
        found[self.batch.groups[np.flatnonzero(advantage)]] = False
        return found

    @cached_property
    def dead_groups(self) -> I64:
        """[M] how many groups have no advantage but 0."""
        return np.bincount(self.group_record[self.dead], minlength=self.batch.records.count)

    @cached_property
    def local_groups(self) -> list[int]:
        """[R] the number of each response's group within its own record."""
        counts = self.record_groups
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        return (self.batch.groups - first[self.batch.records.index]).tolist()

    @cached_property
    def on_policy(self) -> NDArray[np.bool_]:
        """[M] whether a record has tokens, and no ratio but exactly 1."""
        tokens = self.batch.record_tokens
        some = tokens.lengths > 0
        firsts = self.ratio[tokens.starts[some]]
        if not (firsts == 1.0).any():  # the usual case, and fast
            return np.zeros(self.batch.records.count, dtype=np.bool_)
        found: NDArray[np.bool_] = some & (tokens.sum(self.ratio != 1.0) == 0)
        return found


def _sum_of(parts: list[F64]) -> F64:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def record_sums(values: F64, records: Segments) -> F64:
    """[M] the exactly rounded sum of each record's values [R], whatever their order."""
    return values if records.count == len(values) else segment_sums(values, records.lengths)
