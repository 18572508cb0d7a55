"""PPO's clip, as one window on the ratio."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side


def clip(
    ratio: F64,
    advantage: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None,
    dual_clip: float | None,
) -> Surrogate:
    """PPO's clip: s = min(ρ·A, clip(ρ, 1−ε_low, 1+ε_high)·A).

    With ``delta`` the first ρ is min(ρ, δ) (two-sided clip); with ``dual_clip`` s is at least c·A
    where A < 0. Worked out by the sign of A, all of it is one window on the ratio: for A > 0,
    ρ ≤ min(1+ε_high, δ); for A < 0, 1−ε_low ≤ ρ ≤ min(max(1+ε_high, δ), c). Inside it s = ρ·A
    with slope ρ·A; outside, s is A times the nearer end, with slope 0.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        epsilon_low, epsilon_high: half-widths of the trust region, >= 0; with ε_low >= 1 the lower
            bound never acts.
        delta: upper bound on ρ in the unclipped branch; None: none. It is meant to exceed
            1 + ε_high, so as to act on A < 0 only; below that it tightens A > 0 instead.
        dual_clip: the c of dual clip, > 1; None: none.

    Returns:
        ``clip`` is 1 where the upper end bound the token, −1 where the lower did. A token with
        A = 0 is never bound.

    References:
        Schulman et al., PPO, 2017 (arXiv 1707.06347); Yu et al., DAPO, 2025 (arXiv 2503.14476)
        for the separate upper ε; Ye et al., 2019 (arXiv 1912.09729) for the dual clip; Prime
        Intellect, INTELLECT-2, 2025 (arXiv 2505.07291) for δ.
    """  # noqa: D402 - the formula has the function's name
    top = 1.0 + epsilon_high
    upper_gain = top if delta is None else min(top, delta)
    upper_loss = np.inf if delta is None else max(top, delta)
    upper_loss = upper_loss if dual_clip is None else min(upper_loss, dual_clip)
    losing = advantage < 0
    lower = np.where(losing, 1.0 - epsilon_low, 0.0)
    upper = np.where(losing, upper_loss, upper_gain)
    return window(ratio, advantage, lower, upper)


def window(ratio: F64, advantage: F64, lower: F64, upper: F64) -> Surrogate:
    """A·ρ held between two bounds, with slope 0 beyond them.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        lower, upper: [N] the bounds, of every token.
    """
    high = ratio > upper
    low = ratio < lower
    value = np.maximum(ratio, lower)  # and on in its place: new pages cost more than arithmetic
    np.minimum(value, upper, out=value)
    value *= advantage
    slope = value.copy()
    slope[high | low] = 0.0
    return Surrogate(value, side(high, low) * (advantage != 0), slope, None)


CHOICES = {
    "clip": Choice(
        clip,
        {"epsilon_low": 0.2, "epsilon_high": 0.2, "delta": None, "dual_clip": None},
        window="product",
    ),
}
ALIASES = {"vanilla": "clip", "ppo": "clip"}
