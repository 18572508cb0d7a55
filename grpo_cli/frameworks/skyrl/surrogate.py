"""SkyRL's policy losses that no paper writes so, negated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side

_CLAMP = 20.0  # SkyRL's bound on |log ratio| before it is exponentiated


def rollout_is(
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> Surrogate:
    """SkyRL's rollout_is: s = sg[f]·A·log π_θ, f = r within (1 − ε_low, 1 + ε_high), else 0.

    Args:
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        log_probs_rollout: [N] log π_rollout, nats; r = π_θ/π_rollout.
        epsilon_low: the window begins at 1 − ε_low, exclusive.
        epsilon_high: the window ends at 1 + ε_high, exclusive.

    References:
        GLM-5, 2026 (arXiv 2602.15763); IcePop's rule, on the ratio to the engine.
    """
    ratio = np.exp(np.clip(log_probs_new - log_probs_rollout, -_CLAMP, _CLAMP))
    high, low = ratio >= 1.0 + epsilon_high, ratio <= 1.0 - epsilon_low
    slope = np.where(high | low, 0.0, ratio * advantage)
    return Surrogate(slope * log_probs_new, side(high, low) * (advantage != 0), None, slope)


def dppo_tv(
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    log_probs_rollout: F64 | None = None,
    *,
    divergence_low: float,
    divergence_high: float,
) -> Surrogate:
    """SkyRL's dppo, binary TV: s = r·A·M, with the gradient through r.

    π is the engine's policy where the record has it, else π_old; r = π_θ/π. M is 0 where A > 0 and
    π_θ − π > δ_high, and where A < 0 and π − π_θ > δ_low.

    Args:
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        log_probs_old: [N] log π_old, nats.
        log_probs_rollout: [N] the engine's, nats; None: the record has none.
        divergence_low: δ_low, in probability.
        divergence_high: δ_high, in probability.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879).
    """
    anchor = log_probs_old if log_probs_rollout is None else log_probs_rollout
    moved = np.exp(log_probs_new) - np.exp(anchor)
    high = (advantage > 0) & (moved > divergence_high)
    low = (advantage < 0) & (-moved > divergence_low)
    return _anchored(advantage, log_probs_new - anchor, high, low)


def dppo_kl(
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    log_probs_rollout: F64 | None = None,
    *,
    divergence_low: float,
    divergence_high: float,
) -> Surrogate:
    """SkyRL's dppo, binary KL: as ``skyrl/dppo_tv``, with the KL of (π, 1 − π) as the distance.

    M is 0 where A > 0, π_θ > π and the KL is above δ_high, and where A < 0, π_θ < π and it is
    above δ_low; the KL is π·log(π/π_θ) + (1 − π)·log((1 − π + 1e-8)/(1 − π_θ + 1e-8)), nats.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879), equation 14.
    """
    anchor = log_probs_old if log_probs_rollout is None else log_probs_rollout
    new, old = np.exp(log_probs_new), np.exp(anchor)
    others = np.log((1.0 - old + 1e-8) / (1.0 - new + 1e-8))
    divergence = old * (anchor - log_probs_new) + (1.0 - old) * others
    high = (advantage > 0) & (new > old) & (divergence > divergence_high)
    low = (advantage < 0) & (new < old) & (divergence > divergence_low)
    return _anchored(advantage, log_probs_new - anchor, high, low)


def _anchored(
    advantage: F64, difference: F64, high: NDArray[np.bool_], low: NDArray[np.bool_]
) -> Surrogate:
    ratio = np.exp(np.clip(difference, -_CLAMP, _CLAMP))
    value = np.where(high | low, 0.0, ratio * advantage)
    slope = np.where(np.abs(difference) <= _CLAMP, value, 0.0)
    return Surrogate(value, side(high, low), None, slope)


CHOICES = {
    "skyrl/rollout_is": Choice(
        rollout_is,
        {"epsilon_low": 0.2, "epsilon_high": 0.2},
        stops_gradient="the ratio to the engine is a constant weight of log π_θ",
    ),
    "skyrl/dppo_tv": Choice(dppo_tv, {"divergence_low": 0.2, "divergence_high": 0.2}),
    "skyrl/dppo_kl": Choice(dppo_kl, {"divergence_low": 0.2, "divergence_high": 0.2}),
}
