"""Surrogates whose ratio weighs the gradient instead of being optimised, or is left alone."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side, unbound


def unclipped(ratio: F64, advantage: F64) -> Surrogate:
    """No clip: s = ρ·A, with slope ρ·A.

    References:
        the importance-sampled policy gradient; Tinker's ``importance_sampling`` loss.
    """
    value = np.multiply(ratio, advantage, out=np.zeros_like(ratio), where=advantage != 0)
    return Surrogate(value, unbound(len(ratio)), value, None)


def reinforce(log_probs_new: F64, advantage: F64) -> Surrogate:
    """REINFORCE: s = A·log π_θ, with slope A in log π_θ; the old policy plays no part.

    References:
        Williams, 1992; Chu et al., GPG, 2025 (arXiv 2504.02546).
    """
    return Surrogate(advantage * log_probs_new, unbound(len(advantage)), None, advantage)


def cispo(
    ratio: F64, advantage: F64, log_probs_new: F64, *, epsilon_low: float, epsilon_high: float
) -> Surrogate:
    """CISPO: s = sg[clip(ρ, 1−ε_low, 1+ε_high)]·A·log π_θ; the gradient is never cut, only capped.

    The value contains log π_θ, so it is not on the scale of a ratio surrogate; its slope in
    log π_θ is clip(ρ)·A. ``clip`` marks the tokens whose weight was capped.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        epsilon_low, epsilon_high: the weight's bounds are 1−ε_low and 1+ε_high; ε_low >= 1 is no
            lower bound.

    References:
        MiniMax-M1, 2025 (arXiv 2506.13585): no lower bound. Khatri et al., ScaleRL, 2025 (arXiv
        2510.13786): the window [0, 5]. TRL caps at ε_high itself, verl's default window is
        [0.8, 1.2], ROLL's [0.9, 1.1].
    """
    lower, upper = 1.0 - epsilon_low, 1.0 + epsilon_high
    capped = np.clip(ratio, lower, upper) * advantage
    high, low = ratio > upper, ratio < lower
    bound = side(high, low) * (advantage != 0)
    return Surrogate(capped * log_probs_new, bound, None, capped)


CHOICES = {
    "unclipped": Choice(unclipped),
    "reinforce": Choice(reinforce),
    "cispo": Choice(
        cispo,
        {"epsilon_low": 1.0, "epsilon_high": 4.0},
        window="weight",
        stops_gradient="the bounded ratio is a constant weight of log π_θ",
    ),
}
ALIASES = {"importance_sampling": "unclipped", "gpg": "reinforce"}
