"""Surrogates without PPO's clip: weights on the gradient, soft gates, other trust regions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.choice import ByToken, choice
from grpo_cli.objective.results import Surrogate, side, unbound


@choice("surrogate", "unclipped", "importance_sampling")
def unclipped(ratio: F64, advantage: F64) -> Surrogate:
    """No clip: s = ρ·A, with slope ρ·A.

    References:
        the importance-sampled policy gradient; Tinker's ``importance_sampling`` loss.
    """
    value = np.multiply(ratio, advantage, out=np.zeros_like(ratio), where=advantage != 0)
    return Surrogate(value, unbound(len(ratio)), value, None)


@choice("surrogate", "reinforce", "gpg")
def reinforce(log_probs_new: F64, advantage: F64) -> Surrogate:
    """REINFORCE: s = A·log π_θ, with slope A in log π_θ; the old policy is not used.

    References:
        Williams, 1992; Chu et al., GPG, 2025 (arXiv 2504.02546).
    """
    return Surrogate(advantage * log_probs_new, unbound(len(advantage)), None, advantage)


@choice(
    "surrogate",
    "cispo",
    window="weight",
    stops_gradient="the bounded ratio is a constant weight of log π_θ",
    epsilon_low=1.0,
    epsilon_high=4.0,
)
def cispo(
    ratio: F64, advantage: F64, log_probs_new: F64, *, epsilon_low: ByToken, epsilon_high: ByToken
) -> Surrogate:
    """CISPO: s = sg[clip(ρ, 1−ε_low, 1+ε_high)]·A·log π_θ; it caps the weight, not the gradient.

    The value contains log π_θ, so it is not comparable to a ratio surrogate. Its slope in log π_θ
    is clip(ρ)·A. ``clip`` marks tokens with a capped weight.

    Args:
        epsilon_low, epsilon_high: the weight's bounds are 1−ε_low and 1+ε_high; ε_low >= 1 is no
            lower bound.

    References:
        MiniMax-M1, 2025 (arXiv 2506.13585): no lower bound. Khatri et al., ScaleRL, 2025 (arXiv
        2510.13786): the window [0, 5]. TRL caps at ε_high, not 1+ε_high. verl's default bounds are
        [0.8, 1.2], ROLL's [0.9, 1.1].
    """
    lower, upper = 1.0 - epsilon_low, 1.0 + epsilon_high
    capped = np.clip(ratio, lower, upper) * advantage
    high, low = ratio > upper, ratio < lower
    bound = side(high, low) * (advantage != 0)
    return Surrogate(capped * log_probs_new, bound, None, capped)


@choice("surrogate", "sapo", tau_pos=1.0, tau_neg=1.05)
def sapo(ratio: F64, advantage: F64, *, tau_pos: ByToken, tau_neg: ByToken) -> Surrogate:
    """SAPO: s = (4/τ)·σ(τ·(ρ−1))·A, with the logistic function σ.

    The slope in log ρ is 4·σ·(1−σ)·ρ·A: that of ρ·A at ρ = 1, and smaller on both sides. The value
    at ρ = 1 is 2A/τ, not A. τ is tau_pos if A > 0, else tau_neg.

    Args:
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


@choice(
    "surrogate",
    "vespo",
    stops_gradient="the shaped ratio is a constant weight of log π_θ",
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
)
def vespo(
    log_ratio: F64,
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    *,
    vespo_k_pos: ByToken,
    vespo_lambda_pos: ByToken,
    vespo_k_neg: ByToken,
    vespo_lambda_neg: ByToken,
) -> Surrogate:
    """VESPO: s = sg[φ(W)]·A·log π_θ, φ(W) = Wᵏ·exp(λ·(1−W)), W the whole sequence's ratio.

    φ(1) = 1, and φ approaches 0 for small and large W. The value contains log π_θ; the slope in
    log π_θ is φ·A. W is the ratio of the ratio stage (in the paper ``product``). k and λ depend on
    the sign of A.

    Args:
        vespo_k_pos, vespo_lambda_pos: k and λ where A >= 0.
        vespo_k_neg, vespo_lambda_neg: k and λ where A < 0.

    References:
        Shen et al., VESPO, 2026 (arXiv 2602.10693). TRL clamps the token log ratios to ±20 and log
        W to [log 1e-8, 20], and includes the mismatch with the rollout engine in W.
    """
    gaining = advantage >= 0
    power = np.where(gaining, vespo_k_pos, vespo_k_neg)
    rate = np.where(gaining, vespo_lambda_pos, vespo_lambda_neg)
    weighted = np.exp(rate * (1.0 - ratio) + power * log_ratio) * advantage
    return Surrogate(weighted * log_probs_new, unbound(len(ratio)), None, weighted)


@choice("surrogate", "dppo-tv", "dppo_tv", "dppo", divergence_low=0.15, divergence_high=0.15)
def dppo_tv(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    divergence_low: ByToken,
    divergence_high: ByToken,
) -> Surrogate:
    """DPPO, binary TV: s = sg[M]·ρ·A, M = 0 if |p − p_old| exceeds δ in the update's direction.

    With p = π_θ(oₜ) and p_old = π_old(oₜ), M = 0 if A > 0 and p − p_old > δ_high, or if A < 0 and
    p_old − p > δ_low.

    Args:
        divergence_low, divergence_high: δ, in probability.

    References:
        Qi et al., Rethinking the Trust Region in LLM RL (DPPO), 2026 (arXiv 2602.04879). verl
        weights A·log π_θ by sg[min(ρ, c)]: the gradient is equal if ρ ≤ c, the value is not. δ is
        0.2 in SkyRL and, against π_rollout, in prime-rl.
    """
    change = np.abs(np.exp(log_probs_new) - np.exp(log_probs_old))
    risen = log_probs_new - log_probs_old
    return _masked(ratio, advantage, risen, change, divergence_low, divergence_high)


@choice("surrogate", "dppo-kl", "dppo_kl", divergence_low=0.05, divergence_high=0.05)
def dppo_kl(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    divergence_low: ByToken,
    divergence_high: ByToken,
) -> Surrogate:
    """DPPO, binary KL: ``dppo-tv`` with the KL(p_old ‖ p) of 'this token' against 'any other'.

    KL = p_old·log(p_old/p) + (1−p_old)·log((1−p_old)/(1−p)).

    Args:
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
    ratio: F64, advantage: F64, risen: F64, change: F64, low: ByToken, high: ByToken
) -> Surrogate:
    above = (advantage > 0) & (risen > 0) & (change > high)
    below = (advantage < 0) & (risen < 0) & (change > low)
    return dropping(ratio, advantage, above, below)


def dropping(
    ratio: F64, advantage: F64, above: NDArray[np.bool_], below: NDArray[np.bool_]
) -> Surrogate:
    """ρ·A with slope ρ·A, value and slope 0 where a bound was crossed."""
    kept = ~(above | below) & (advantage != 0)
    value = np.multiply(ratio, advantage, out=np.zeros_like(ratio), where=kept)
    return Surrogate(value, side(above, below), value, None)


@choice("surrogate", "dro", "kimi15", scales=False, dro_beta=0.05)
def dro(
    token_log_ratio: F64, advantage: F64, log_probs_new: F64, *, dro_beta: ByToken
) -> Surrogate:
    """DRO: s = A·log π_θ − (β/2)·d², d = log π_θ − log π_old at the token.

    The slope in log π_θ is A − β·d. There is no ratio; the quadratic term pulls towards the old
    policy.

    Args:
        token_log_ratio: [N] d, nats.
        dro_beta: β, > 0.

    References:
        Richemond et al., Offline Regularised RL (DRO), 2024 (arXiv 2405.19107); Kimi k1.5, 2025
        (arXiv 2501.12599), with β = τ. Both square the log ratio of the whole response. verl, ROLL
        and Tinker (against the sampler) square that of each token, as here.
    """
    value = advantage * log_probs_new - (0.5 * dro_beta) * np.square(token_log_ratio)
    return Surrogate(value, unbound(len(value)), None, advantage - dro_beta * token_log_ratio)


@choice("surrogate", "topr", stops_gradient="the truncated ratio is a constant weight of log π_θ")
def topr(ratio: F64, advantage: F64, log_probs_new: F64) -> Surrogate:
    """TOPR: s = A·log π_θ if A > 0, else sg[min(ρ, 1)]·A·log π_θ.

    Bad responses lose weight as they become less likely; good ones do not. The value contains log
    π_θ. ``clip`` marks tokens whose weight is capped at 1.

    Args:
        ratio: [N] ρ; the paper's is that of the whole response (``product``).

    References:
        Le Roux et al., Tapered Off-Policy REINFORCE, 2025 (arXiv 2503.14286). ROLL uses the raw
        score instead of A and weights each token by its own ratio.
    """
    losing = advantage < 0
    weighted = np.where(losing, np.minimum(ratio, 1.0), 1.0) * advantage
    capped = side(losing & (ratio > 1.0), np.zeros_like(losing))
    return Surrogate(weighted * log_probs_new, capped, None, weighted)
