"""FIPO: a clipped surrogate weighed by how the policy has moved at the tokens that follow."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.groups import suffix_sums
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate.clip import clip

_SAFE = (0.8, 1.0)  # the weight of a token that is made likelier although A < 0


def fipo(
    ratio: F64,
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    positions: I64 | None = None,
    *,
    log_ratio_clamp: float | None,
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
    clipped to [0.8, 1] besides. Masked tokens inside a response count in the distance k − t.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        token_log_ratio: [N] d, nats.
        responses: cuts the tokens into responses.
        positions: [N] each token's index in its response, masked ones counted; None: none masked.
        log_ratio_clamp: bound on |d| in F; None: no bound.
        epsilon_low, epsilon_high, delta, dual_clip: as for ``clip``.
        fipo_decay_rate: the half-life in tokens.
        fipo_clip_low, fipo_clip_high: half-widths of the weight's bounds.
        fipo_safety_threshold: a ratio.

    References:
        Ma et al., FIPO, 2026 (arXiv 2603.19835), as the authors' future_kl and ms-swift run it.
    """
    base = clip(
        ratio,
        advantage,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=delta,
        dual_clip=dual_clip,
    )
    moved = token_log_ratio if delta is None else np.where(ratio > delta, 0.0, token_log_ratio)
    if log_ratio_clamp is not None:
        moved = np.clip(moved, -log_ratio_clamp, log_ratio_clamp)
    future = _over_positions(moved, responses, positions, 2.0 ** (-1.0 / fipo_decay_rate))
    weight = np.clip(np.exp(future), 1.0 - fipo_clip_low, 1.0 + fipo_clip_high)
    unsafe = (advantage < 0) & (ratio > fipo_safety_threshold)
    weight = np.where(unsafe, np.clip(weight, *_SAFE), weight)
    assert base.grad_log_ratio is not None
    return Surrogate(weight * base.value, base.clip, weight * base.grad_log_ratio, None)


def _over_positions(
    values: F64, responses: Segments, positions: I64 | None, discount: float
) -> F64:
    """[N] ``suffix_sums`` with 0 for the masked tokens between those that are there."""
    if positions is None:
        return suffix_sums(values, responses, discount)
    lengths = np.zeros(responses.count, np.int64)
    np.maximum.at(lengths, responses.index, positions + 1)
    columns = Segments(lengths)
    places = columns.starts[responses.index] + positions
    spread = np.zeros(columns.total)
    spread[places] = values
    return suffix_sums(spread, columns, discount)[places]


_USUAL = {
    "log_ratio_clamp": None,
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "delta": 10.0,
    "dual_clip": None,
    "fipo_decay_rate": 32.0,
    "fipo_clip_low": 0.0,
    "fipo_clip_high": 0.2,
    "fipo_safety_threshold": 4.0,
}

_STOPS = "the weight of the tokens to come is a constant"

CHOICES = {"fipo": Choice(fipo, _USUAL, stops_gradient=_STOPS)}
