"""FIPO: a clipped surrogate weighed by how the policy has moved at the tokens that follow."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.arithmetic.suffix_sums import suffix_sums
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate.clip import clip

_SAFE = (0.8, 1.0)  # the weight of a token that is made likelier although A < 0


def fipo(
    ratio: F64,
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    *,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None,
    dual_clip: float | None,
    fipo_decay_rate: float,
    fipo_clip_low: float,
    fipo_clip_high: float,
    fipo_safety_threshold: float,
) -> Surrogate:
    """FIPO: s = sg[f]·clip surrogate, fₜ = clip(exp(Fₜ), 1−f_low, 1+f_high), Fₜ = Σₖ≥ₜ γ^(k−t)·dₖ.

    F is the discounted log ratio from the token to the end of its response, γ = 2^(−1/half-life);
    a token with ρ > δ has no part in it. Where A < 0 and ρ exceeds the safety threshold, f is
    clipped to [0.8, 1] besides.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        token_log_ratio: [N] d, nats.
        responses: cuts the tokens into responses.
        epsilon_low, epsilon_high, delta, dual_clip: as for ``clip``.
        fipo_decay_rate: the half-life in tokens.
        fipo_clip_low, fipo_clip_high: half-widths of the weight's bounds.
        fipo_safety_threshold: a ratio.

    References:
        Ma et al., FIPO, 2026 (arXiv 2603.19835); the details as in ms-swift, whose distances count
        masked tokens inside a response too.
    """
    moved = moved_tokens(ratio, token_log_ratio, delta)
    future = suffix_sums(moved, responses, decay(fipo_decay_rate))
    return influenced(
        ratio,
        advantage,
        future,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=delta,
        dual_clip=dual_clip,
        fipo_clip_low=fipo_clip_low,
        fipo_clip_high=fipo_clip_high,
        fipo_safety_threshold=fipo_safety_threshold,
    )


def moved_tokens(ratio: F64, token_log_ratio: F64, delta: float | None) -> F64:
    """[N] d, 0 where ρ > δ."""
    return token_log_ratio if delta is None else np.where(ratio > delta, 0.0, token_log_ratio)


def decay(half_life: float) -> float:
    """γ of a half-life in tokens."""
    return float(2.0 ** (-1.0 / half_life))


def influenced(
    ratio: F64,
    advantage: F64,
    future: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None,
    dual_clip: float | None,
    fipo_clip_low: float,
    fipo_clip_high: float,
    fipo_safety_threshold: float,
) -> Surrogate:
    """The clipped surrogate times the weight that [N] F gives."""
    base = clip(
        ratio,
        advantage,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=delta,
        dual_clip=dual_clip,
    )
    weight = np.clip(np.exp(future), 1.0 - fipo_clip_low, 1.0 + fipo_clip_high)
    unsafe = (advantage < 0) & (ratio > fipo_safety_threshold)
    weight = np.where(unsafe, np.clip(weight, *_SAFE), weight)
    assert base.grad_log_ratio is not None
    return Surrogate(weight * base.value, base.clip, weight * base.grad_log_ratio, None)


USUAL = {
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "delta": 10.0,
    "dual_clip": None,
    "fipo_decay_rate": 32.0,
    "fipo_clip_low": 0.0,
    "fipo_clip_high": 0.2,
    "fipo_safety_threshold": 4.0,
}

CHOICES = {"fipo": Choice(fipo, USUAL)}
