"""Surrogates made for data that another policy sampled."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side, unbound


def dro(token_log_ratio: F64, advantage: F64, log_probs_new: F64, *, dro_beta: float) -> Surrogate:
    """DRO: s = A·log π_θ − (β/2)·d², d = log π_θ − log π_old at the token.

    The slope in log π_θ is A − β·d: no ratio, a quadratic pull back to the old policy instead.

    Args:
        token_log_ratio: [N] d, nats.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        dro_beta: β, > 0.

    References:
        Richemond et al., Offline Regularised RL (DRO), 2024 (arXiv 2405.19107); Kimi k1.5, 2025
        (arXiv 2501.12599), with β = τ. Both square the whole response's log ratio; verl, ROLL and
        Tinker that of each token, as here, Tinker against the sampler.
    """
    value = advantage * log_probs_new - (0.5 * dro_beta) * np.square(token_log_ratio)
    return Surrogate(value, unbound(len(value)), None, advantage - dro_beta * token_log_ratio)


def topr(ratio: F64, advantage: F64, log_probs_new: F64) -> Surrogate:
    """TOPR: s = A·log π_θ where A > 0, and sg[min(ρ, 1)]·A·log π_θ elsewhere.

    Good responses are imitated as they are, bad ones only while they are still likely. The value
    contains log π_θ. ``clip`` marks the tokens whose weight was capped at 1.

    Args:
        ratio: [N] ρ; the paper's is that of the whole response (``product``).
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.

    References:
        Le Roux et al., Tapered Off-Policy REINFORCE, 2025 (arXiv 2503.14286). ROLL tells good
        from bad by the raw score and weighs each token by its own ratio.
    """
    losing = advantage < 0
    weighted = np.where(losing, np.minimum(ratio, 1.0), 1.0) * advantage
    capped = side(losing & (ratio > 1.0), np.zeros_like(losing))
    return Surrogate(weighted * log_probs_new, capped, None, weighted)


CHOICES = {
    "dro": Choice(dro, {"dro_beta": 0.05}),
    "topr": Choice(topr, stops_gradient="the truncated ratio is a constant weight of log π_θ"),
}
ALIASES = {"kimi15": "dro"}
