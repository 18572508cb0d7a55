"""DPPO: a trust region in the divergence of the token's probability instead of the ratio."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side


def dppo_tv(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    divergence_low: float,
    divergence_high: float,
) -> Surrogate:
    """DPPO, binary TV: s = sg[M]·ρ·A, M = 0 where the update leaves |p − p_old| ≤ δ.

    With p = π_θ(oₜ) and p_old = π_old(oₜ): M = 0 where A > 0, p > p_old and |p − p_old| > δ_high,
    and where A < 0, p < p_old and |p − p_old| > δ_low. A token so dropped has value and slope 0.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        log_probs_new, log_probs_old: [N] nats.
        divergence_low, divergence_high: δ, in probability.

    References:
        Qi et al., Rethinking the Trust Region in LLM RL (DPPO), 2026 (arXiv 2602.04879). verl
        weighs A·log π_θ with sg[min(ρ, c)] instead: the same gradient while ρ ≤ c, another value.
        SkyRL's default is δ = 0.2, prime-rl's the same against π_rollout.
    """
    change = np.abs(np.exp(log_probs_new) - np.exp(log_probs_old))
    risen = log_probs_new - log_probs_old
    return _masked(ratio, advantage, risen, change, divergence_low, divergence_high)


def dppo_kl(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    divergence_low: float,
    divergence_high: float,
) -> Surrogate:
    """DPPO, binary KL: as ``dppo-tv`` with KL(p_old ‖ p) of the token taken against all others.

    KL = p_old·log(p_old/p) + (1−p_old)·log((1−p_old)/(1−p)).

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        log_probs_new, log_probs_old: [N] nats.
        divergence_low, divergence_high: δ, in nats.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879). verl adds 1e-8 inside the second logarithm.
    """
    rest_old, rest_new = -np.expm1(log_probs_old), -np.expm1(log_probs_new)
    risen = log_probs_new - log_probs_old
    with np.errstate(divide="ignore"):
        others = np.log(rest_old) - np.log(rest_new)
    rest = np.multiply(rest_old, others, out=np.zeros_like(others), where=rest_old > 0)
    change = rest - np.exp(log_probs_old) * risen
    return _masked(ratio, advantage, risen, change, divergence_low, divergence_high)


def _masked(
    ratio: F64, advantage: F64, risen: F64, change: F64, low: float, high: float
) -> Surrogate:
    above = (advantage > 0) & (risen > 0) & (change > high)
    below = (advantage < 0) & (risen < 0) & (change > low)
    kept = ~(above | below) & (advantage != 0)
    value = np.multiply(ratio, advantage, out=np.zeros_like(ratio), where=kept)
    return Surrogate(value, side(above, below), value, None)


CHOICES = {
    "dppo-tv": Choice(dppo_tv, {"divergence_low": 0.15, "divergence_high": 0.15}),
    "dppo-kl": Choice(dppo_kl, {"divergence_low": 0.05, "divergence_high": 0.05}),
}
ALIASES = {"dppo_tv": "dppo-tv", "dppo_kl": "dppo-kl", "dppo": "dppo-tv"}
