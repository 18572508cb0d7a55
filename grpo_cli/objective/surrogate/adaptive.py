"""PPO's clip with bounds that follow the data: each token's probability, or a record's balance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate.clip import window

_MOST_STEPS = 10_000


def dcpo(
    ratio: F64,
    advantage: F64,
    log_probs_old: F64,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dcpo_ratio_max: float,
    dual_clip: float | None,
) -> Surrogate:
    """DCPO: s = min(ρ·A, clip(ρ, low, high)·A) with bounds that widen as π_old(token) falls.

    low = ½ + ½·√max(1 − 4·ε_low/q, 0) and high = min(½ + ½·√(1 + 4·ε_high/q), r_max), q = π_old:
    the solutions of |(ρ − 1)·ρ·q| ≤ ε.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        log_probs_old: [N] log π_old, nats.
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
    ratio: F64, advantage: F64, lower: F64, upper: F64, dual_clip: float | None
) -> Surrogate:
    """min(ρ·A, clip(ρ, lower, upper)·A), at least c·A where A < 0."""
    losing = advantage < 0
    ceiling = np.inf if dual_clip is None else dual_clip
    return window(ratio, advantage, np.where(losing, lower, 0.0), np.where(losing, ceiling, upper))


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
    dual_clip: float | None,
) -> Surrogate:
    """BAPO: PPO's clip within [c_low, c_high], which rise until good tokens weigh enough.

    From their starts, first c_low and then c_high is raised by its step, up to its greatest value,
    while Σ_{A>0} min(ρ, c_high)·A < target · Σ_{A<0} max(ρ, c_low)·|A| over the record's tokens. A
    target of 1 is the paper's ρ₀ = ½ of all. No gradient flows through the bounds.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        responses, records: cut tokens and responses; a record is what is balanced.
        bapo_target: what the positive over the negative contribution has to reach.
        bapo_low_start, bapo_low_max, bapo_low_step: of c_low, a bound on ρ itself.
        bapo_high_start, bapo_high_max, bapo_high_step: of c_high.
        dual_clip: s is at least c·A where A < 0; None: no such bound.

    Raises:
        HyperparameterError: for a step that would take more than 10,000 of them.

    References:
        Xi et al., BAPO, 2025 (arXiv 2510.18927), in the order of the released code, which
        balances a micro-batch over all processes, adds 1e-8 to the negative part, has a dual clip
        of 3 and clamps log ρ to ±20.
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
    """c_low and c_high; the sums are exactly rounded, so no order of the tokens changes them."""
    gains, losses = advantage > 0, advantage < 0
    good, gained = ratio[gains], advantage[gains]
    bad, lost = ratio[losses], -advantage[losses]

    def positive(high: float) -> float:
        return added((np.minimum(good, high) * gained).tolist())

    def negative(low: float) -> float:
        return added((np.maximum(bad, low) * lost).tolist())

    def enough(positive: float, negative: float) -> bool:
        return negative <= 0 or positive >= target * negative

    least = positive(highs[0])
    low = next((low for low in lows if enough(least, negative(low))), lows[-1])
    against = negative(low)
    high = next((high for high in highs if enough(positive(high), against)), highs[-1])
    return low, high


CHOICES = {
    "dcpo": Choice(
        dcpo,
        {"epsilon_low": 0.2, "epsilon_high": 0.28, "dcpo_ratio_max": 10.0, "dual_clip": None},
    ),
    "bapo": Choice(
        bapo,
        {
            "bapo_target": 1.0,
            "bapo_low_start": 0.6,
            "bapo_low_max": 0.9,
            "bapo_low_step": 0.05,
            "bapo_high_start": 1.2,
            "bapo_high_max": 3.0,
            "bapo_high_step": 0.05,
            "dual_clip": None,
        },
    ),
}
ALIASES = {"dynamic-clip": "dcpo"}
