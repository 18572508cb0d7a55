"""Surrogates whose value at one token depends on other tokens: a response's, or a group's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side, unbound


def gmpo(
    log_ratio: F64,
    advantage: F64,
    responses: Segments,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> Surrogate:
    """GMPO: s = A·exp((1/|o|) Σₜ cₜ), the geometric mean of the token ratios, each clipped first.

    The clip is one-sided and in log space: cₜ = min(dₜ, ε_high) where A > 0, max(dₜ, −ε_low) where
    A < 0, with dₜ = log ρₜ. Every token of the response has that value; the gradient reaches the
    tokens that were not clipped.

    Args:
        log_ratio: [N] d at token level, nats.
        advantage: [N] A.
        responses: cuts the tokens into responses.
        epsilon_low, epsilon_high: half-widths of the clip, nats.

    References:
        Zhao et al., Geometric-Mean Policy Optimization, 2025 (arXiv 2507.20673), ε = 0.4. verl
        multiplies the mean by A's own mean over the response.
    """
    return geometric_clip(log_ratio, advantage, responses, None, epsilon_low, epsilon_high)


def geometric_clip(
    log_ratio: F64,
    advantage: F64,
    responses: Segments,
    counted: NDArray[np.bool_] | None,
    epsilon_low: float,
    epsilon_high: float,
) -> Surrogate:
    """``gmpo``, the mean being over the tokens of ``counted`` [N] alone; None counts all of them.

    A response of which no token counts has the ratio 1.
    """
    high = (advantage > 0) & (log_ratio > epsilon_high)
    low = (advantage < 0) & (log_ratio < -epsilon_low)
    clipped = np.where(high, epsilon_high, np.where(low, -epsilon_low, log_ratio))
    held, counts = high | low, responses.lengths
    if counted is not None:
        clipped, held = np.where(counted, clipped, 0.0), held | ~counted
        counts = responses.sum(counted.astype(np.int64))
    counts = np.maximum(counts, 1)
    value = np.exp(responses.sum(clipped) / counts)[responses.index] * advantage

    def spread(slope: F64) -> F64:
        return np.where(held, 0.0, (responses.sum(slope) / counts)[responses.index])

    return Surrogate(value, side(high, low), value, None, spread=spread)


def real(
    log_ratio: F64, advantage: F64, responses: Segments, groups: Groups, *, real_tau: float
) -> Surrogate:
    """REAL: s = −[log(1 + Σ_bad e^(s̄/τ)) + log(1 + Σ_good e^(−s̄/τ))] over the group.

    Rewards are labels: a response is good where A > 0 and bad elsewhere, s̄ being the mean log ratio
    of its tokens. Every token of a group has the group's value, so that ``prompt-mean`` is the mean
    over groups; 0 in a group that is all good or all bad. The gradient takes in that a token
    moves the value of the whole group, under any aggregation. A response without tokens has no
    log ratio and takes no part.

    Args:
        log_ratio: [N] log ρ, at any level.
        advantage: [N] A, of which only the sign counts.
        responses: cuts the tokens into responses.
        groups: which responses answer the same prompt.
        real_tau: τ > 0.

    References:
        Zhai et al., Rewards as Labels, 2026 (arXiv 2602.05630).
    """
    filled = responses.lengths > 0
    good = filled & (responses.mean(advantage) > 0)
    return of_labels(log_ratio, good, filled & ~good, responses, groups, real_tau)


def of_labels(
    log_ratio: F64,
    good: NDArray[np.bool_],
    bad: NDArray[np.bool_],
    responses: Segments,
    groups: Groups,
    real_tau: float,
) -> Surrogate:
    """``real`` of the responses that are good and bad; one without tokens has s̄ = 0."""
    scores = responses.mean(log_ratio) / real_tau
    losing, winning = _soft_count(scores, bad, groups), _soft_count(-scores, good, groups)
    valid = (groups.sum(good.astype(np.float64)) > 0) & (groups.sum(bad.astype(np.float64)) > 0)
    loss = np.where(valid, losing.total + winning.total, 0.0)[groups.index]
    slope = (winning.slope - losing.slope) / real_tau / np.maximum(responses.lengths, 1)
    slope = np.where(valid[groups.index], slope, 0.0)

    def spread(weights: F64) -> F64:
        whole = groups.sum(responses.sum(weights))[groups.index]
        return (whole * slope)[responses.index]

    value = -loss[responses.index]
    return Surrogate(value, unbound(len(value)), np.ones_like(value), None, spread=spread)


class _SoftCount(NamedTuple):
    """log(1 + Σ eˣ) of each group [groups], and its slope in each x [R]."""

    total: F64
    slope: F64


def _soft_count(values: F64, members: NDArray[np.bool_], groups: Groups) -> _SoftCount:
    taken = np.where(members, values, -np.inf)
    top = np.maximum(groups.reduce(lambda rows: rows.max(axis=1), taken), 0.0)
    mass = groups.sum(np.exp(taken - top[groups.index]))
    total = np.where(top > 0, top + np.log(np.exp(-top) + mass), np.log1p(mass))
    return _SoftCount(total, np.exp(taken - total[groups.index]))


CHOICES = {
    "gmpo": Choice(gmpo, {"epsilon_low": 0.4, "epsilon_high": 0.4}),
    "real": Choice(real, {"real_tau": 0.5}),
}
ALIASES = {"geo_mean": "gmpo"}
