"""What the stage functions return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments


class PerToken(NamedTuple):
    """Marks advantages that differ between the tokens of a response: values [N]."""

    values: F64


def of_tokens(advantage: F64 | PerToken, responses: Segments) -> F64:
    """[N] each token's advantage: its own, or that of its response."""
    return advantage.values if isinstance(advantage, PerToken) else responses.spread(advantage)


class Moments(NamedTuple):
    """The batch's statistics as the stages read them, one value per response [R].

    ``count`` is the number of elements, ``mean`` their mean and ``squares`` Σ(x − mean)².
    """

    count: F64  # type: ignore[assignment]  # hides tuple.count
    mean: F64
    squares: F64

    def std(self, ddof: int) -> F64:
        """[R] the standard deviation; nan where ``count`` is not greater than ``ddof``."""
        free = self.count - ddof
        return np.sqrt(np.where(free > 0, self.squares / np.where(free > 0, free, 1.0), np.nan))


class Sample(NamedTuple):
    """What the statistics are of: values with multiplicities, per response [R] or token [N]."""

    values: F64
    times: F64
    per_token: bool = False

    def of(self, wanted: NDArray[np.bool_]) -> Sample:
        """Those of the values that are wanted."""
        return self._replace(values=self.values[wanted], times=self.times[wanted])


class Ratio(NamedTuple):
    """[N] log ρ (nats), [N] ρ, and ``pull``: [N] ∂/∂log ρ → [N] ∂/∂log π_θ."""

    log_ratio: F64
    ratio: F64
    pull: Callable[[F64], F64]


def times(ratio: F64, factor: F64) -> F64:
    """[N] ρ·factor; 0 where the factor is, even where ρ is too large for a double."""
    product = ratio * factor
    return product if np.isfinite(ratio).all() else np.where(factor == 0.0, 0.0, product)


class Surrogate(NamedTuple):
    """[N] s; [N] clip side −1, 0, 1; [N] ∂s/∂log ρ and ∂s/∂log π_θ, None where zero.

    ``empty`` is [R], what a response without tokens has for s where a framework gives it a term of
    its own (its ratio being 1); None where it has none.

    ``spread`` says how a token's s depends on other tokens, where it does: it takes
    ∂J/∂s·∂s/∂log ρ of every token, [N], to ∂J/∂log ρ, [N].
    """

    value: F64
    clip: NDArray[np.int8]
    grad_log_ratio: F64 | None
    grad_log_prob: F64 | None
    empty: F64 | None = None
    spread: Callable[[F64], F64] | None = None


def side(high: NDArray[np.bool_], low: NDArray[np.bool_]) -> NDArray[np.int8]:
    """[N] 1 where the upper bound acted, −1 where the lower did, else 0."""
    return high.view(np.int8) - low.view(np.int8)


def unbound(count: int) -> NDArray[np.int8]:
    """[count] the side of tokens that no clip bounds."""
    return np.zeros(count, np.int8)


class Kl(NamedTuple):
    """[N] k; [N] ∂k/∂log π_θ; [N] ∂k/∂log ρ, None where the ratio has no part in it."""

    value: F64
    grad_log_prob: F64
    grad_log_ratio: F64 | None


class Correction(NamedTuple):
    """Constants (no gradient flows through them) that multiply each token's terms.

    Attributes:
        weight: [N] c, which multiplies the surrogate.
        kl_weight: [N] what multiplies the KL estimate; None leaves it alone.
        kept: [N] bool, the tokens that the denominators count; None counts all of them. The
            entropy of a token that they do not count has no part in its term.
        policy_only: whether only the policy term's denominator leaves tokens out.
        unmasked: [N] bool, the tokens of which ratio and surrogate are, where the others are out of
            them as masked ones are; None: all.
        bonus_kept: [N] bool, the tokens of which the entropy bonus is taken, where they are fewer
            than those of the other terms; None takes the same.
    """

    weight: F64
    kl_weight: F64 | None = None
    kept: NDArray[Any] | None = None
    policy_only: bool = False
    unmasked: NDArray[Any] | None = None
    bonus_kept: NDArray[Any] | None = None


class Weights(NamedTuple):
    """w of a response's tokens = numerator · tokens / (divisor · Σ counts over the batch).

    Attributes:
        numerator: [R] the response's own part.
        counts: [R] what each response adds to the denominator that counts (1, its tokens, ...);
            None where nothing is counted.
        divisor: the constant part of the denominator; [R] where records differ in it.
        of: what the denominator is, in words.
        tokens: [N] each token's own part, where tokens of a response weigh differently; None: 1.
    """

    numerator: F64
    counts: F64 | None
    divisor: float | F64
    of: str
    tokens: F64 | None = None

    def factor(self) -> F64:
        """[R] the weights of the responses without the denominator that counts over the batch."""
        return self.numerator / self.divisor

    def times_own(self, values: F64) -> F64:
        """[N] the values, each times the token's own part of its weight."""
        return values if self.tokens is None else self.tokens * values


def per_token(lengths: I64, count_eps: float = 0.0) -> F64:
    """[R] 1/(|oᵢ| + ε); for a response without tokens, which nothing is multiplied by, about 1."""
    return 1.0 / (np.maximum(lengths, 1) + count_eps)
