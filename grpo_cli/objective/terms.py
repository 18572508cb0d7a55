"""The terms of J, each a weighted sum over tokens: policy, KL, entropy; the entropy bonus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, Batch, Segments
from grpo_cli.objective.choice import ByToken, Choice
from grpo_cli.objective.results import Weights

POLICY, KL, ENTROPY = "policy", "kl", "entropy"


class Term(NamedTuple):
    """One sum of J = Σ over terms of coefficient · Σₜ wₜ·valueₜ.

    Attributes:
        name: "policy" (value c·s, coefficient 1), "kl" (k, −β) or "entropy" (H, entropy_coef).
        coefficient: what the sum is multiplied by; with 0 it has no part in J. [M] where records
            differ in it, none of them by 0.
        weights: the aggregation's weights of this term.
        values: [N] the value of each token.
        sums: [R] Σ of the values over each response's tokens, each times ``weights.tokens``.
        slope: [N] ∂sums/∂(log π_θ) of each token; None where no gradient flows.
    """

    name: str
    coefficient: float | F64
    weights: Weights
    values: F64
    sums: F64
    slope: F64 | None

    @property
    def active(self) -> bool:
        """Whether it has a part in J."""
        return isinstance(self.coefficient, np.ndarray) or self.coefficient != 0.0

    def weighted(self) -> F64:
        """[R] the sums of the responses times ``Weights.factor``."""
        return self.weights.factor() * self.sums


class GradientPart(NamedTuple):
    """The terms that share their weights: ∂J/∂(log π_θ) is Σ over parts of w·slope.

    Attributes:
        name: the first of the terms.
        weights: what they share.
        scale: what the weights are multiplied by before the slope is; [R] where records differ.
        slope: [N].
    """

    name: str
    weights: Weights
    scale: float | F64
    slope: F64

    @property
    def is_scaled(self) -> bool:
        """Whether the scale is not 1."""
        return isinstance(self.scale, np.ndarray) or self.scale != 1.0

    def spread(self, per_response: F64, responses: Segments) -> F64:
        """[N] ``scale`` times a number of each response, times the slope."""
        return np.repeat(self.scale * per_response, responses.lengths) * self.slope

    def without_count(self, responses: Segments) -> F64:
        """[N] w·slope, but for the denominator that counts over the batch."""
        slope = spread_over(self.scale, responses) * self.slope if self.is_scaled else self.slope
        return responses.spread(self.weights.factor()) * slope


def spread_over(values: float | F64, segments: Segments) -> float | F64:
    """Each segment's number, repeated for its elements; a number for all is left as it is."""
    return segments.spread(values) if isinstance(values, np.ndarray) else values


def _by_token(term: Term, batch: Batch) -> float | F64:
    """A term's coefficient, [N] where records differ in it."""
    return spread_over(spread_over(term.coefficient, batch.records), batch.responses)


def gradient_parts(terms: Sequence[Term], batch: Batch) -> Iterator[GradientPart]:
    """The terms that have a gradient, those with the same weights taken together."""
    moving = [(term, term.slope) for term in terms if term.active and term.slope is not None]
    for weights in {id(term.weights): term.weights for term, _ in moving}.values():
        together = [(term, slope) for term, slope in moving if term.weights is weights]
        (first, slope), *others = together
        if not others:
            scale = spread_over(first.coefficient, batch.records)
            yield GradientPart(first.name, weights, scale, slope)
            continue
        total = slope if first.name == POLICY else _by_token(first, batch) * slope
        for term, other in others:
            part = _by_token(term, batch) * other
            total = np.add(total, part, out=part)
        yield GradientPart(first.name, weights, 1.0, total)


def bonus(entropies: F64, *, entropy_coef: ByToken) -> F64:
    """J gains entropy_coef · Σₜ w·Hₜ, H being the entropy of π_θ at each token in nats.

    The entropy is not a function of the log-prob of the token taken, so the bonus has no part in
    the gradient that is shown.

    References:
        Williams and Peng, 1991; He et al., Skywork-OR1, 2025 (arXiv 2505.22312).
    """
    del entropy_coef  # the pipeline multiplies by it
    return entropies


BONUS = Choice(bonus)
