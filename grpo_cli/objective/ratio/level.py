"""The levels at which the current policy is compared with the old one.

Each function turns the token log ratios dₜ = log π_θ(oₜ) − log π_old(oₜ) into log ρ and ρ per
token, and knows how a slope with respect to log ρ is pulled back to the tokens' log-probs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Ratio


def _same(slope: F64) -> F64:
    return slope


def token(token_log_ratio: F64, *, log_ratio_clamp: float | None) -> Ratio:
    """Token level: ρₜ = exp(dₜ), dₜ = log π_θ − log π_old.

    Args:
        token_log_ratio: [N] d, nats.
        log_ratio_clamp: bound on |d| before the exponential (verl: 20); beyond it the gradient
            is 0. None: no bound.

    References:
        Shao et al., DeepSeekMath, 2024 (arXiv 2402.03300).
    """
    if log_ratio_clamp is None:
        return Ratio(token_log_ratio, np.exp(token_log_ratio), _same)
    clamped = np.clip(token_log_ratio, -log_ratio_clamp, log_ratio_clamp)
    inside = clamped == token_log_ratio
    return Ratio(clamped, np.exp(clamped), lambda slope: np.where(inside, slope, 0.0))


def sequence(token_log_ratio: F64, responses: Segments, *, log_ratio_clamp: float | None) -> Ratio:
    """Sequence level, length-normalised: ρᵢ = exp((1/|oᵢ|) Σₜ dₜ), dₜ = log π_θ − log π_old.

    All tokens of the response have it. The gradient flows through every token of the mean.

    Args:
        token_log_ratio: [N] d, nats.
        responses: cuts the tokens into responses.
        log_ratio_clamp: bound on |log ρᵢ|; None: no bound.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), the sequence ratio sᵢ. Others call the plain
        product "sequence" too; that is ``product`` here.
    """
    lengths = np.maximum(responses.lengths, 1)

    def pull(slope: F64) -> F64:
        return np.repeat(responses.sum(slope) / lengths, responses.lengths)

    return _whole(responses, responses.mean(token_log_ratio), pull, log_ratio_clamp)


def sequence_eps(token_log_ratio: F64, responses: Segments, *, count_eps: float) -> Ratio:
    """``sequence`` with ε added to the count: ρᵢ = exp(Σₜ dₜ / (|oᵢ| + ε)).

    dₜ = log π_θ − log π_old of the token.

    Args:
        token_log_ratio: [N] d, nats.
        responses: cuts the tokens into responses.
        count_eps: ε, tokens. A sum of 60 nats over one token moves ρᵢ by 6e-7 with ε = 1e-8.

    References:
        NeMo-RL's masked_mean, in double precision: in single precision ε is lost beside a count.
        OpenRLHF's GSPO divides by the count itself, ROLL's counts are in single precision.
    """
    divisors = np.where(responses.lengths > 0, responses.lengths + count_eps, 1.0)

    def pull(slope: F64) -> F64:
        return np.repeat(responses.sum(slope) / divisors, responses.lengths)

    return _whole(responses, responses.sum(token_log_ratio) / divisors, pull, None)


def sequence_token(
    token_log_ratio: F64, responses: Segments, *, log_ratio_clamp: float | None
) -> Ratio:
    """GSPO-token: the value of ``sequence``, the gradient of each token's own log-prob.

    ρₜ = sg[sᵢ] · π_θ(oₜ) / sg[π_θ(oₜ)]: ∂log ρₜ/∂log π_θ(oₜ) is 1, not 1/|oᵢ|.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), section on GSPO-token.
    """
    return _whole(responses, responses.mean(token_log_ratio), _same, log_ratio_clamp)


def product(token_log_ratio: F64, responses: Segments, *, log_ratio_clamp: float | None) -> Ratio:
    """Sequence level, the plain product: ρᵢ = exp(Σₜ dₜ), dₜ = log π_θ − log π_old.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740), as TRL's RLOOTrainer
        compares whole sequences.
    """

    def pull(slope: F64) -> F64:
        return np.repeat(responses.sum(slope), responses.lengths)

    return _whole(responses, responses.sum(token_log_ratio), pull, log_ratio_clamp)


def _whole(
    responses: Segments, log_ratio: F64, pull: Callable[[F64], F64], clamp: float | None
) -> Ratio:
    if clamp is not None:
        inside = np.repeat(np.abs(log_ratio) <= clamp, responses.lengths)
        log_ratio = np.clip(log_ratio, -clamp, clamp)
        unclamped = pull

        def pull(slope: F64) -> F64:
            return unclamped(np.where(inside, slope, 0.0))

    spread = np.repeat(log_ratio, responses.lengths)
    return Ratio(spread, np.repeat(np.exp(log_ratio), responses.lengths), pull)


CHOICES = {
    "token": Choice(token, {"log_ratio_clamp": None}, given=True),
    "sequence": Choice(sequence, {"log_ratio_clamp": None}, per_response=True),
    "sequence-eps": Choice(sequence_eps, {"count_eps": 1e-8}, per_response=True),
    "sequence-token": Choice(
        sequence_token,
        {"log_ratio_clamp": None},
        stops_gradient="each token's own log-prob moves the sequence's ratio",
    ),
    "product": Choice(product, {"log_ratio_clamp": None}, per_response=True),
}
ALIASES = {"sequence_token": "sequence-token", "gspo": "sequence", "gspo-token": "sequence-token"}
