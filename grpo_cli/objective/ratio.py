"""Stage 2, ratio: at what level is π_θ compared with π_old?

Each function turns the token log ratios dₜ = log π_θ(oₜ) − log π_old(oₜ) into log ρ and ρ per
token, and knows how a slope with respect to log ρ is pulled back to the tokens' log-probs. Against
the engine that sampled, one ratio w = π_θ/π_rollout plays the parts of both the update's ratio and
the correction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import ByResponse, ByToken, choice, reading
from grpo_cli.objective.results import Ratio


def _same(slope: F64) -> F64:
    return slope


@choice("ratio", "token", given=True, log_ratio_clamp=None)
def token(token_log_ratio: F64, *, log_ratio_clamp: ByToken | None) -> Ratio:
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


@choice("ratio", "sequence", "gspo", per_response=True, log_ratio_clamp=None)
def sequence(
    token_log_ratio: F64, responses: Segments, *, log_ratio_clamp: ByResponse | None
) -> Ratio:
    """Sequence level, length-normalised: ρᵢ = exp((1/|oᵢ|) Σₜ dₜ), dₜ = log π_θ − log π_old.

    All tokens of the response share it. The gradient flows through all of them.

    Args:
        token_log_ratio: [N] d, nats.
        log_ratio_clamp: bound on |log ρᵢ|; None: no bound.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), the sequence ratio sᵢ. Some frameworks call
        the product "sequence"; here that is ``product``.
    """
    lengths = np.maximum(responses.lengths, 1)

    def pull(slope: F64) -> F64:
        return np.repeat(responses.sum(slope) / lengths, responses.lengths)

    return _whole(responses, responses.mean(token_log_ratio), pull, log_ratio_clamp)


turn = reading(
    sequence,
    """Turn level, length-normalised: ρ of a turn = exp of the mean of its dₜ = log π_θ − log π_old.

    All tokens of the turn share it. The gradient flows through all of them.

    Args:
        token_log_ratio: [N] d, nats.
        log_ratio_clamp: bound on |log ρ|; None: no bound.

    References:
        Li et al., ST-PPO, 2025 (arXiv 2511.20718), turn-level importance sampling.
    """,
    responses="turns",
)
choice("ratio", "turn", log_ratio_clamp=None)(turn)


@choice("ratio", "sequence-eps", per_response=True, count_eps=1e-08)
def sequence_eps(token_log_ratio: F64, responses: Segments, *, count_eps: ByResponse) -> Ratio:
    """``sequence`` with ε added to the count: ρᵢ = exp(Σₜ dₜ / (|oᵢ| + ε)).

    dₜ = log π_θ − log π_old of the token.

    Args:
        token_log_ratio: [N] d, nats.
        count_eps: ε, tokens. A sum of 60 nats over one token moves ρᵢ by 6e-7 with ε = 1e-8.

    References:
        NeMo-RL's masked_mean, in float64; in float32 the sum with ε rounds to the count.
        OpenRLHF's GSPO divides by the count; ROLL adds ε in float32.
    """
    divisors = np.where(responses.lengths > 0, responses.lengths + count_eps, 1.0)

    def pull(slope: F64) -> F64:
        return np.repeat(responses.sum(slope) / divisors, responses.lengths)

    return _whole(responses, responses.sum(token_log_ratio) / divisors, pull, None)


@choice(
    "ratio",
    "sequence-token",
    "sequence_token",
    "gspo-token",
    stops_gradient="each token's own log-prob moves the sequence's ratio",
    log_ratio_clamp=None,
)
def sequence_token(
    token_log_ratio: F64, responses: Segments, *, log_ratio_clamp: ByResponse | None
) -> Ratio:
    """GSPO-token: the value of ``sequence``, with a gradient through the token's own log-prob only.

    ρₜ = sg[sᵢ] · π_θ(oₜ) / sg[π_θ(oₜ)]: ∂log ρₜ/∂log π_θ(oₜ) is 1, not 1/|oᵢ|.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), section on GSPO-token.
    """
    return _whole(responses, responses.mean(token_log_ratio), _same, log_ratio_clamp)


@choice("ratio", "product", per_response=True, log_ratio_clamp=None)
def product(
    token_log_ratio: F64, responses: Segments, *, log_ratio_clamp: ByResponse | None
) -> Ratio:
    """Sequence level, the plain product: ρᵢ = exp(Σₜ dₜ), dₜ = log π_θ − log π_old.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740), as in TRL's RLOOTrainer.
    """

    def pull(slope: F64) -> F64:
        return np.repeat(responses.sum(slope), responses.lengths)

    return _whole(responses, responses.sum(token_log_ratio), pull, log_ratio_clamp)


def _whole(
    responses: Segments, log_ratio: F64, pull: Callable[[F64], F64], clamp: ByResponse | None
) -> Ratio:
    if clamp is not None:
        inside = np.repeat(np.abs(log_ratio) <= clamp, responses.lengths)
        log_ratio = np.clip(log_ratio, -clamp, clamp)
        unclamped = pull

        def pull(slope: F64) -> F64:
            return unclamped(np.where(inside, slope, 0.0))

    spread = np.repeat(log_ratio, responses.lengths)
    return Ratio(spread, np.repeat(np.exp(log_ratio), responses.lengths), pull)


@choice(
    "ratio", "on-policy", stops_gradient="the old policy is the current one, without a gradient"
)
def on_policy(log_probs_new: F64) -> Ratio:
    """ρ = π_θ/sg[π_θ] = 1, whatever the old policy, with the gradient of the token level.

    References:
        NeMo-RL's ``force_on_policy_ratio``; open-instruct and slime in their first update, where
        the old log-probs come from the same forward pass.
    """
    return token(log_probs_new - log_probs_new, log_ratio_clamp=None)


@choice("ratio", "rollout", log_ratio_clamp=None)
def rollout(
    log_probs_new: F64, log_probs_rollout: F64, *, log_ratio_clamp: ByToken | None
) -> Ratio:
    """Token level, against the sampling engine: wₜ = π_θ(oₜ) / π_rollout(oₜ).

    Args:
        log_probs_rollout: [N] log-probs that the engine itself reported, nats.
        log_ratio_clamp: bound on |log w|; None: no bound.

    References:
        prime-rl, Tinker; slime's ``--use-rollout-logprobs``, verl's bypass mode.
    """
    return token(log_probs_new - log_probs_rollout, log_ratio_clamp=log_ratio_clamp)


@choice("ratio", "rollout-sequence", log_ratio_clamp=None)
def rollout_sequence(
    log_probs_new: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    log_ratio_clamp: ByResponse | None,
) -> Ratio:
    """Sequence level, against the sampling engine: the geometric mean of ``rollout``.

    References:
        OpenRLHF, GSPO with its importance-sampling correction switched on.
    """
    difference = log_probs_new - log_probs_rollout
    return sequence(difference, responses, log_ratio_clamp=log_ratio_clamp)


@choice(
    "ratio",
    "rollout-sequence-token",
    stops_gradient="only the token's own log-prob gives the ratio a gradient",
)
def rollout_sequence_token(
    log_probs_new: F64, log_probs_rollout: F64, responses: Segments
) -> Ratio:
    """GSPO-token against the sampling engine: the value of ``rollout-sequence``.

    The gradient flows through each token's own log-prob only, so advantages may differ between
    tokens.

    Args:
        log_probs_rollout: [N] log-probs that the engine itself reported, nats.
        responses: which tokens belong to each response; the mean is over a response.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), section on GSPO-token; Tinker's gspo.
    """
    difference = log_probs_new - log_probs_rollout
    return sequence_token(difference, responses, log_ratio_clamp=None)
