"""Surrogates that fade a far ratio out instead of cutting it off."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, unbound


def sapo(ratio: F64, advantage: F64, *, tau_pos: float, tau_neg: float) -> Surrogate:
    """SAPO: s = (4/τ)·σ(τ·(ρ−1))·A, σ being the logistic function.

    The slope in log ρ is 4·σ·(1−σ)·ρ·A: as for ρ·A at ρ = 1, and fading on both sides. The value
    at ρ = 1 is 2A/τ, not A. τ is tau_pos where A > 0 and tau_neg elsewhere.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        tau_pos, tau_neg: τ where A > 0, and elsewhere; > 0.

    References:
        Gao et al., Soft Adaptive Policy Optimization, 2025 (arXiv 2511.20347).
    """
    tau = np.where(advantage > 0, tau_pos, tau_neg)
    far = np.exp(-np.abs(tau * (ratio - 1.0)))
    gate = np.where(ratio >= 1.0, 1.0, far) / (1.0 + far)
    bell = 4.0 * far / np.square(1.0 + far)
    faded = np.multiply(bell, ratio, out=np.zeros_like(ratio), where=far > 0)
    value = (4.0 / tau) * gate * advantage
    return Surrogate(value, unbound(len(ratio)), faded * advantage, None)


def vespo(
    log_ratio: F64,
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    *,
    vespo_k_pos: float,
    vespo_lambda_pos: float,
    vespo_k_neg: float,
    vespo_lambda_neg: float,
) -> Surrogate:
    """VESPO: s = sg[φ(W)]·A·log π_θ, φ(W) = Wᵏ·exp(λ·(1−W)), W the whole sequence's ratio.

    φ(1) = 1, and φ fades to 0 for a W near 0 and a great W alike. The value contains log π_θ; the
    slope in log π_θ is φ·A. W is the ratio of the ratio stage, which is ``product`` in the paper;
    k and λ are those of the sign of A.

    Args:
        log_ratio, ratio: [N] log W, W.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        vespo_k_pos, vespo_lambda_pos: k and λ where A >= 0.
        vespo_k_neg, vespo_lambda_neg: k and λ where A < 0.

    References:
        Shen et al., VESPO, 2026 (arXiv 2602.10693). TRL clamps the token log ratios to ±20 and
        log W to [log 1e-8, 20], and takes the rollout engine's mismatch into W.
    """
    gaining = advantage >= 0
    power = np.where(gaining, vespo_k_pos, vespo_k_neg)
    rate = np.where(gaining, vespo_lambda_pos, vespo_lambda_neg)
    weighted = np.exp(rate * (1.0 - ratio) + power * log_ratio) * advantage
    return Surrogate(weighted * log_probs_new, unbound(len(ratio)), None, weighted)


CHOICES = {
    "sapo": Choice(sapo, {"tau_pos": 1.0, "tau_neg": 1.05}),
    "vespo": Choice(
        vespo,
        {
            "vespo_k_pos": 2.0,
            "vespo_lambda_pos": 3.0,
            "vespo_k_neg": 3.0,
            "vespo_lambda_neg": 2.0,
        },
        stops_gradient="the shaped ratio is a constant weight of log π_θ",
    ),
}
