"""PPO's clip, clips whose bounds follow the data, and what is done beyond the bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.choice import ByToken, choice
from grpo_cli.objective.results import Surrogate, side


@choice(
    "surrogate",
    "clip",
    "vanilla",
    "ppo",
    window="product",
    epsilon_low=0.2,
    epsilon_high=0.2,
    delta=None,
    dual_clip=None,
)
def clip(
    ratio: F64,
    advantage: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    delta: ByToken | None,
    dual_clip: ByToken | None,
) -> Surrogate:
    """PPO's clip: s = min(ρ·A, clip(ρ, 1−ε_low, 1+ε_high)·A).

    With ``delta`` (δ) the first ρ is min(ρ, δ): two-sided clip. With ``dual_clip`` (c) s is at
    least c·A if A < 0. So a token with A > 0 is clipped if ρ > min(1+ε_high, δ), and one with
    A < 0 if ρ < 1−ε_low or ρ > min(max(1+ε_high, δ), c). A clipped token has s = A times the bound
    and slope 0; any other has s = ρ·A with slope ρ·A.

    Args:
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
    upper_gain = top if delta is None else np.minimum(top, delta)
    upper_loss = np.inf if delta is None else np.maximum(top, delta)
    upper_loss = upper_loss if dual_clip is None else np.minimum(upper_loss, dual_clip)
    losing = advantage < 0
    lower = np.where(losing, 1.0 - epsilon_low, 0.0)
    upper = np.where(losing, upper_loss, upper_gain)
    return window(ratio, advantage, lower, upper)


def window(ratio: F64, advantage: F64, lower: F64, upper: F64) -> Surrogate:
    """A·ρ held between two bounds, with slope 0 beyond them.

    Args:
        lower, upper: [N] the bounds, of every token.
    """
    high = ratio > upper
    low = ratio < lower
    value = np.maximum(ratio, lower)  # and on in its place: new pages cost more than arithmetic
    np.minimum(value, upper, out=value)
    value *= advantage
    beyond = high | low  # where nothing is, value and slope are one array
    slope = np.where(beyond, 0.0, value) if beyond.any() else value
    return Surrogate(value, side(high, low) * (advantage != 0), slope, None)


_MOST_STEPS = 10_000
_NEAR = 1e-9
"""Of sums of positive numbers: more than what rounding is off by."""


@choice(
    "surrogate",
    "dcpo",
    "dynamic-clip",
    epsilon_low=0.2,
    epsilon_high=0.28,
    dcpo_ratio_max=10.0,
    dual_clip=None,
)
def dcpo(
    ratio: F64,
    advantage: F64,
    log_probs_old: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    dcpo_ratio_max: ByToken,
    dual_clip: ByToken | None,
) -> Surrogate:
    """DCPO: s = min(ρ·A, clip(ρ, low, high)·A), with wider bounds for tokens with smaller π_old.

    low = ½ + ½·√max(1 − 4·ε_low/q, 0) and high = min(½ + ½·√(1 + 4·ε_high/q), r_max), q = π_old:
    the solutions of |(ρ − 1)·ρ·q| ≤ ε.

    Args:
        epsilon_low, epsilon_high: ε, in probability.
        dcpo_ratio_max: r_max, the greatest upper bound.
        dual_clip: s is at least c·A where A < 0; None: no such bound.

    References:
        Yang et al., DCPO: Dynamic Clipping Policy Optimization, 2025 (arXiv 2509.02333). The
        released code has 0.2, 0.28, r_max 10 and a dual clip of 10.
    """
    with np.errstate(over="ignore"):
        rarity = 4.0 * np.exp(-log_probs_old)
        lower = 0.5 + 0.5 * np.sqrt(np.maximum(1.0 - epsilon_low * rarity, 0.0))
        upper = np.minimum(0.5 + 0.5 * np.sqrt(1.0 + epsilon_high * rarity), dcpo_ratio_max)
    return _clipped(ratio, advantage, lower, upper, dual_clip)


def _clipped(
    ratio: F64, advantage: F64, lower: F64, upper: F64, dual_clip: ByToken | None
) -> Surrogate:
    """min(ρ·A, clip(ρ, lower, upper)·A), at least c·A where A < 0."""
    losing = advantage < 0
    ceiling = np.inf if dual_clip is None else dual_clip
    return window(ratio, advantage, np.where(losing, lower, 0.0), np.where(losing, ceiling, upper))


@choice(
    "surrogate",
    "bapo",
    scales=False,
    bapo_target=1.0,
    bapo_low_start=0.6,
    bapo_low_max=0.9,
    bapo_low_step=0.05,
    bapo_high_start=1.2,
    bapo_high_max=3.0,
    bapo_high_step=0.05,
    dual_clip=None,
)
def bapo(
    ratio: F64,
    advantage: F64,
    responses: Segments,
    records: Segments,
    *,
    bapo_target: float,
    bapo_low_start: float,
    bapo_low_max: float,
    bapo_low_step: float,
    bapo_high_start: float,
    bapo_high_max: float,
    bapo_high_step: float,
    dual_clip: ByToken | None,
) -> Surrogate:
    """BAPO: PPO's clip to [c_low, c_high], which rise until good tokens have enough weight.

    First c_low and then c_high is raised by its step, up to its final value, while Σ_{A>0} min(ρ,
    c_high)·A < target · Σ_{A<0} max(ρ, c_low)·|A| over the record's tokens. A target of 1 is the
    paper's ρ₀ = ½. No gradient flows through the bounds.

    Args:
        responses, records: which tokens and responses belong together; each record is balanced.
        bapo_target: what the positive over the negative contribution has to reach.
        bapo_low_start, bapo_low_max, bapo_low_step: of c_low, a bound on ρ itself.
        bapo_high_start, bapo_high_max, bapo_high_step: of c_high.
        dual_clip: s is at least c·A where A < 0; None: no such bound.

    Raises:
        HyperparameterError: for a step that would take more than 10,000 of them.

    References:
        Xi et al., BAPO, 2025 (arXiv 2510.18927), in the order of the released code. That code
        adapts the bounds per micro-batch over all processes, adds 1e-8 to the negative part, has a
        dual clip of 3 and clamps log ρ to ±20.
    """
    lower, upper = np.empty(len(ratio)), np.empty(len(ratio))
    lows = _steps("bapo_low_step", bapo_low_start, bapo_low_max, bapo_low_step)
    highs = _steps("bapo_high_step", bapo_high_start, bapo_high_max, bapo_high_step)
    for tokens in of_records(responses, records):
        lower[tokens], upper[tokens] = _balanced(
            ratio[tokens], advantage[tokens], lows, highs, bapo_target
        )
    return _clipped(ratio, advantage, lower, upper, dual_clip)


def of_records(responses: Segments, records: Segments) -> Iterator[slice]:
    """The tokens of each record."""
    ends = np.concatenate(([0], np.cumsum(responses.lengths)))
    cuts = ends[np.concatenate(([0], np.cumsum(records.lengths)))].tolist()
    yield from (slice(start, end) for start, end in pairwise(cuts))


def _steps(name: str, start: float, most: float, step: float) -> list[float]:
    """The values that a bound goes through, each made of the one before, as the code does it.

    Raises:
        HyperparameterError: where there are more than anybody wants to try.
    """
    if step > 0 and most - start > _MOST_STEPS * step:
        least = (most - start) / _MOST_STEPS
        raise HyperparameterError(name, f"expected 0 or at least {least:g}, got {step:g}")
    found = [start]
    while found[-1] < most and step > 0:
        found.append(min(found[-1] + step, most))
    return found


def _balanced(
    ratio: F64, advantage: F64, lows: list[float], highs: list[float], target: float
) -> tuple[float, float]:
    """c_low and c_high; sums that nearly meet are exactly rounded, so no order changes them."""
    gains, losses = advantage > 0, advantage < 0
    good, gained = ratio[gains], advantage[gains]
    bad, lost = ratio[losses], -advantage[losses]

    def against(low: float) -> F64:
        return np.maximum(bad, low) * lost

    def enough(losing: F64, high: float) -> bool:
        parts = np.minimum(good, high) * gained, losing
        positive, negative = (float(part.sum()) for part in parts)
        if not abs(positive - target * negative) > _NEAR * (positive + abs(target) * negative):
            positive, negative = (added(part.tolist()) for part in parts)
        return negative <= 0 or positive >= target * negative

    # Raising c_low makes the negative sum larger: where the first is not enough, none is.
    low = lows[0] if enough(against(lows[0]), highs[0]) else lows[-1]
    first = bisect_left(highs, True, key=partial(enough, against(low)))  # noqa: FBT003
    return low, highs[min(first, len(highs) - 1)]


@choice(
    "surrogate",
    "ce-gppo",
    "gppo_general",
    "ce_gppo",
    stops_gradient="the ratio beyond the clip range",
    epsilon_low=0.2,
    epsilon_high=0.2,
    gppo_beta1=0.5,
    gppo_beta2=1.0,
    dual_clip=None,
)
def ce_gppo(
    ratio: F64,
    advantage: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    gppo_beta1: ByToken,
    gppo_beta2: ByToken,
    dual_clip: ByToken | None,
) -> Surrogate:
    """CE-GPPO: PPO's clip, but clipped tokens keep a gradient: β₁ or β₂ times that at the bound.

    s = β₁·(1−ε_low)·A·ρ/sg[ρ] if ρ < 1−ε_low and A < 0; β₂·(1+ε_high)·A·ρ/sg[ρ] if ρ > 1+ε_high
    and A > 0; else ρ·A. Value and slope in log ρ are equal everywhere. If β is not 1, the value
    jumps at the bounds.

    Args:
        epsilon_low, epsilon_high: half-widths of the trust region, >= 0.
        gppo_beta1: β₁, below the range, where A < 0.
        gppo_beta2: β₂, above the range, where A > 0.
        dual_clip: s is at least c·A where A < 0, with slope 0 there; None: no such bound.

    Returns:
        ``clip`` is 1 and −1 on the tokens that got β₂ and β₁, and 1 where the dual clip acted.

    References:
        Su et al., CE-GPPO, 2025 (arXiv 2509.20712), without a dual clip in its equation; the
        released code has c = 10 in its scripts. GPPO of Klear-Reasoner (arXiv 2508.07629) has
        β₁ = β₂ = 1.
    """
    lower, upper = 1.0 - epsilon_low, 1.0 + epsilon_high
    low = (ratio < lower) & (advantage < 0)
    high = (ratio > upper) & (advantage > 0)
    weight = np.where(low, gppo_beta1 * lower, np.where(high, gppo_beta2 * upper, ratio))
    value = weight * advantage
    if dual_clip is None:
        return Surrogate(value, side(high, low), value, None)
    far = (advantage < 0) & (weight > dual_clip)
    bounded = np.where(far, dual_clip * advantage, value)
    return Surrogate(bounded, side(high | far, low), np.where(far, 0.0, value), None)


@choice("surrogate", "minirl", epsilon_low=0.2, epsilon_high=0.27)
def minirl(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
) -> Surrogate:
    """MiniRL: s = M·sg[π_θ/π_rollout]·A·log π_θ, M = 0 outside the clip range.

    M is 0 if ρ > 1+ε_high and A > 0, or if ρ < 1−ε_low and A < 0, with ρ = π_θ/π_old. The value
    contains log π_θ.

    Args:
        ratio: [N] ρ = π_θ/π_old.
        epsilon_low, epsilon_high: how far ρ may go, >= 0.

    Returns:
        ``clip`` marks the tokens that were dropped.

    References:
        Zheng et al., Stabilizing Reinforcement Learning with LLMs, 2025 (arXiv 2512.01374). The
        weight follows the paper's equation; its experiments also bound π_old/π_rollout.
    """
    high = (ratio > 1.0 + epsilon_high) & (advantage > 0)
    low = (ratio < 1.0 - epsilon_low) & (advantage < 0)
    weight = np.exp(log_probs_new - log_probs_rollout)
    weighted = np.where(high | low | (advantage == 0), 0.0, weight * advantage)
    return Surrogate(weighted * log_probs_new, side(high, low), None, weighted)
