"""A record that differs, and what can be tried on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.verify.causes.compared import Compared
from grpo_cli.commands.verify.compare import largest
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.results import Weights
from grpo_cli.objective.terms import Term
from grpo_cli.records import assemble
from grpo_cli.variants import bind

_GIVEN = bind("advantage", "given")


class Case(Compared):
    """A record that differs; or several of one kind, for causes that work record by record."""

    def evaluated(self, batch: Batch | None = None, /, **stages: Bound | None) -> Breakdown:
        """The record with other data, or with other stages."""
        objective = replace(self.objective, **stages) if stages else self.objective  # type: ignore[arg-type]
        return evaluate(self.batch if batch is None else batch, objective)

    def with_columns(self, **columns: Any) -> Breakdown:
        """The record with other columns in its batch."""
        return self.evaluated(replace(self.batch, **columns))

    def weighted(self, policy: F64, kl: F64 | None = None, batch: Batch | None = None) -> Breakdown:
        """The record with other weights of its tokens, [N], and of those of the KL."""
        ones = np.ones(self.batch.responses.count)
        own, of_kl = (
            None if tokens is None else solved(Weights(ones, None, 1.0, "solved", tokens))
            for tokens in (policy, kl)
        )
        return self.evaluated(batch, aggregate=own, kl_aggregate=of_kl)

    def with_record(self, **changed: Any) -> Breakdown:
        """The record with other columns, or another mask, as written."""
        return self.evaluated(assemble([replace(self.record, **changed)]))

    def with_terms(self, change: Callable[[Term], Term], only: str = "") -> Breakdown:
        """The record's evaluation with its terms changed, or ``only`` the one of that name."""
        terms = (change(one) if only in ("", one.name) else one for one in self.breakdown.terms)
        return replace(self.breakdown, terms=tuple(terms))

    def with_coefficient(self, name: str, factor: float) -> Breakdown:
        """The record's evaluation with the coefficient of a term, by name, times a factor."""
        return self.with_terms(
            lambda term: term._replace(coefficient=factor * term.coefficient), name
        )

    def everything_times(self, factor: float, only: str = "") -> Breakdown:
        """J times a factor, and with it its gradient; or ``only`` the term of that name."""
        weights = {id(term.weights): term.weights for term in self.breakdown.terms}
        scaled = {key: w._replace(numerator=factor * w.numerator) for key, w in weights.items()}
        return self.with_terms(lambda term: term._replace(weights=scaled[id(term.weights)]), only)

    def scaled(self, loss: float, gradient: float, only: str = "") -> Breakdown:
        """The values of all terms, or of ``only`` one, times a factor, and their gradients."""

        def changed(term: Term) -> Term:
            slope = None if term.slope is None else gradient * term.slope
            return term._replace(values=loss * term.values, sums=loss * term.sums, slope=slope)

        return self.with_terms(changed, only)

    def counted(self, term: Term, times: F64) -> Term:
        """A term with each token counted so many times, [N]; its denominator stays."""
        values, slope = term.values * times, None if term.slope is None else term.slope * times
        return term._replace(values=values, sums=self.batch.responses.sum(values), slope=slope)

    def with_advantages(self, advantages: F64) -> Breakdown:
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
        return self.with_advantages(np.zeros(self.batch.responses.count))

    @property
    def has_unused_reference(self) -> bool:
        """Whether there is a reference, and the objective has no KL to it."""
        return self.batch.log_probs_ref is not None and not self.objective.beta

    @cached_property
    def policy_gradient(self) -> F64:
        """[N] the part of the gradient that the policy term has."""
        return self.breakdown.gradient - self.without_policy.gradient

    @cached_property
    def unit_slopes(self) -> tuple[F64, F64]:
        """[N] the policy term's part of the gradient where every A is 1, and where it is −1."""
        silent, ones = self.without_policy.gradient, np.ones(self.batch.responses.count)
        return self.with_advantages(ones).gradient - silent, self.with_advantages(
            -ones
        ).gradient - silent

    @cached_property
    def statistics(self) -> dict[tuple[str, ...], Any]:
        """Statistics of the rewards that were computed, by name."""
        return {}

    @cached_property
    def effective_advantages(self) -> F64 | None:
        """[R] the advantage that explains each response's gradient; NaN where none can be solved.

        Every surrogate of the family is proportional to A on either side of 0, so the gradient with
        A = 1 and with A = −1 says what any A gives. None where a response has one that no A gives.
        """
        wanted, a = self.expected_policy_gradient, self.breakdown.response_advantage
        if wanted is None or a is None or self.gradient is None:
            return None
        responses = self.batch.responses
        noise = self.tolerance.rtol * float(np.abs(self.gradient).max(initial=0.0))
        solved, left = np.full(responses.count, np.nan), np.full(responses.count, np.inf)
        for sign, slope in zip((1.0, -1.0), self.unit_slopes, strict=True):
            square = responses.sum(slope * slope)
            size = responses.sum(slope * wanted) / np.where(square > 0, square, 1.0)
            worst = largest(np.abs(wanted - responses.spread(size) * slope), responses)
            better = (size >= 0) & (square > 0) & (worst < left)
            solved, left = np.where(better, sign * size, solved), np.where(better, worst, left)
        off = (responses.lengths > 0) & np.isfinite(left) & (left > 3.0 * noise)
        return None if off.any() else solved

    @cached_property
    def other_advantages(self) -> bool:
        """Whether an advantage per response may give the gradient that is expected.

        Not where the policy term is |A| times what it is for A = ±1, and no multiple of either
        comes near the gradient of a response: whatever is in its place, it is not the advantage.
        """
        own, wanted = self.breakdown.response_advantage, self.expected_policy_gradient
        read = {*self.objective.correction.choice.columns, *self.objective.aggregate.choice.columns}
        if own is None or wanted is None or self.objective.kl_in_reward:
            return True
        if read & {"advantage", "response_advantage"}:
            return True
        gain, loss = self.unit_slopes
        each = self.batch.responses.spread(own)
        scaled = np.where(each > 0, gain, -loss) * each
        if not np.allclose(scaled, self.policy_gradient, rtol=1e-6, atol=1e-12):
            return True
        return bool((self._multiple(wanted, gain) | self._multiple(wanted, loss)).all())

    @cached_property
    def other_weights(self) -> bool:
        """Whether weights of responses may: the gradient of each is a multiple of ours then."""
        if self.gradient is None or self.objective.kl_aggregate is not None:
            return True
        return bool(self._multiple(self.gradient, self.breakdown.gradient).all())

    def _multiple(self, wanted: F64, slope: F64) -> Flags:
        """[R] whether a response's numbers may be a multiple of others, as far as any agree.

        Where any multiple is off by δ at most, the one of least squares is by √T·δ.
        """
        responses = self.batch.responses
        square = responses.sum(slope * slope)
        size = responses.sum(slope * wanted) / np.where(square > 0, square, 1.0)
        off = np.abs(wanted - responses.spread(size) * slope)
        room = 4.0 * self._room * np.sqrt(responses.lengths)
        return largest(~(off <= responses.spread(room)), responses) == 0.0

    @cached_property
    def _room(self) -> float:
        """How far off gradients are at most that agree."""
        column = self.gradient_column
        assert column is not None
        slack = 0.0 if column.slack is None else column.slack
        allowed = self.tolerance.absolute(column) + slack + np.zeros_like(column.values)
        return float(allowed.max() + self.tolerance.rtol * np.abs(column.values).max())

    @cached_property
    def expected_policy_gradient(self) -> F64 | None:
        """[N] what is expected of it, if the KL is right."""
        if self.gradient is None:
            return None
        return self.gradient - self.without_policy.gradient


def solved(weights: Weights) -> Bound:
    """An aggregation of these weights."""
    return Bound("solved", Choice(lambda: weights), {})
