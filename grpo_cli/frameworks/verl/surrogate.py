"""verl's policy losses that are not PPO's clip, negated: what each token adds to J."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side
from grpo_cli.objective.surrogate.covariance import BAND, clip_cov, kl_cov


def dppo_tv(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float,
) -> Surrogate:
    """DPPO, binary TV: s = A·sg[min(ρ, c)]·log π_θ where π_θ has not moved too far, else 0.

    A token stays while π_θ − π_old <= ε_high (A > 0), or >= −ε_low (A <= 0).

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        log_probs_old: [N] log π_old, nats.
        epsilon_low: bound on the fall of the probability, not of the ratio.
        epsilon_high: bound on its rise.
        dual_clip: c, the cap on the ratio (verl's ``clip_ratio_c``): 3 by verl's configuration, 20
            by its code, 10000 by its example.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879), which compares with the rollout policy.
    """
    moved = np.exp(log_probs_new) - np.exp(log_probs_old)
    outside = np.where(advantage > 0, moved > epsilon_high, moved < -epsilon_low)
    return _divergence(ratio, advantage, log_probs_new, outside, dual_clip)


def dppo_kl(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float,
) -> Surrogate:
    """DPPO, binary KL: as ``verl/dppo_tv``, with the KL of (π_old, 1 − π_old) as the distance.

    A token leaves where that KL exceeds ε_high and π_θ rose (A > 0), or ε_low and π_θ fell
    (A <= 0).

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879).
    """
    new, old = np.exp(log_probs_new), np.exp(log_probs_old)
    others = np.log((1.0 - old + 1e-8) / (1.0 - new + 1e-8))
    divergence = old * (log_probs_old - log_probs_new) + (1.0 - old) * others
    outside = np.where(
        advantage > 0,
        (divergence > epsilon_high) & (new > old),
        (divergence > epsilon_low) & (new < old),
    )
    return _divergence(ratio, advantage, log_probs_new, outside, dual_clip)


def _divergence(
    ratio: F64, advantage: F64, log_probs_new: F64, outside: NDArray[np.bool_], cap: float
) -> Surrogate:
    slope = np.where(outside, 0.0, np.minimum(ratio, cap) * advantage)
    bound = side(outside & (advantage > 0), outside & (advantage < 0))
    return Surrogate(slope * log_probs_new, bound, None, slope)


def geo_mean(
    token_log_ratio: F64,
    advantage: F64,
    responses: Segments,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> Surrogate:
    """GMPO: s = Ā·exp(mean of d′), d′ = min(d, ε_high) where A > 0, max(d, −ε_low) where A < 0.

    The clip is in log space: ρ within [e^−ε_low, e^ε_high]. Every token of a response has the
    response's value; Ā and the mean divide by |oᵢ| + 1e-8.

    References:
        Zhao et al., GMPO, 2025 (arXiv 2507.20673), whose clip is wider: ε = 0.4.
    """
    high = (token_log_ratio > epsilon_high) & (advantage > 0)
    low = (token_log_ratio < -epsilon_low) & (advantage < 0)
    kept = np.where(high, epsilon_high, np.where(low, -epsilon_low, token_log_ratio))
    count = responses.lengths + 1e-8
    mean = responses.sum(np.where(advantage == 0, 0.0, kept)) / count
    value = responses.spread(responses.sum(advantage) / count * np.exp(mean))
    share = responses.spread(responses.lengths / count)
    slope = np.where(high | low | (advantage == 0), 0.0, value * share)
    return Surrogate(value, side(high, low), None, slope)


_DPPO = {"epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": 3.0}

CHOICES = {
    "verl/kl_cov": Choice(kl_cov, {"kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1}),
    "verl/clip_cov": Choice(clip_cov, {**BAND, "clip_cov_seed": 0}),
    "verl/dppo_tv": Choice(
        dppo_tv, _DPPO, stops_gradient="the truncated ratio is a constant weight of log π_θ"
    ),
    "verl/dppo_kl": Choice(
        dppo_kl, _DPPO, stops_gradient="the truncated ratio is a constant weight of log π_θ"
    ),
    "verl/geo_mean": Choice(geo_mean, {"epsilon_low": 0.2, "epsilon_high": 0.2}),
}
