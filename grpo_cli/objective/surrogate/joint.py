"""Surrogates whose value at one token depends on others, of its response, its group or its record.

The covariance of a token is (A − Ā)·(log π_θ − mean log π_θ), the means and the ranks being those
of its record: they cannot be taken over a stream. Equal covariances are ordered by the
tokens' values, never by their places, so the order of the responses changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.arithmetic.groups import Groups, suffix_sums
from grpo_cli.objective.choice import ByToken, Usual, choice, holding
from grpo_cli.objective.results import Surrogate, side, times, unbound
from grpo_cli.objective.surrogate.clip import clip, of_records


@choice("surrogate", "kl-cov", "kl_cov", scales=False, kl_cov_ratio=0.0002, ppo_kl_coef=1.0)
def kl_cov(
    ratio: F64,
    log_ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    records: Segments,
    *,
    kl_cov_ratio: float,
    ppo_kl_coef: float,
) -> Surrogate:
    """KL-Cov: s = ρ·A, minus coef·|log ρ| at the tokens with the largest covariance; no clip.

    Args:
        responses, records: which tokens and responses belong together; k and the covariance are
            per record.
        kl_cov_ratio: the share of a record's N tokens that is held back, k = max(1, ⌊share·N⌋).

    References:
        Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025 (arXiv
        2505.22617). The share and the coefficient are 0.0002 and 0.1 in verl, 0.2 and 1.0 in
        SkyRL.
    """
    held = np.zeros(len(ratio))
    covariance = _covariance(advantage, log_probs_new, responses, records)
    keys = (responses.lengths[responses.index], log_ratio, log_probs_new, advantage, covariance)
    for tokens in of_records(responses, records):
        part = covariance[tokens]
        count = min(max(1, int(kl_cov_ratio * len(part))), len(part))
        if not count:
            continue
        least = np.partition(part, len(part) - count)[len(part) - count]
        near = np.flatnonzero(~(part < least))  # NaN is larger than all, as it is when sorted
        order = near[np.lexsort([key[tokens][near] for key in keys])]
        held[tokens][order[len(order) - count :]] = ppo_kl_coef
    gain = times(ratio, advantage)
    value = gain - held * np.abs(log_ratio)
    slope = gain - held * np.sign(log_ratio)
    return Surrogate(value, np.zeros(len(ratio), np.int8), slope, None)


BAND: Usual = {
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "clip_cov_ratio": 0.0002,
    "clip_cov_lb": 1.0,
    "clip_cov_ub": 5.0,
}


@choice("surrogate", "clip-cov", "clip_cov", scales=False, **BAND)
def clip_cov(
    ratio: F64,
    log_ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    records: Segments,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    clip_cov_ratio: float,
    clip_cov_lb: ByToken,
    clip_cov_ub: ByToken,
    clip_cov_seed: int,
) -> Surrogate:
    """Clip-Cov: PPO's clip that also drops random tokens with a large covariance.

    Of a record's N tokens it drops max(1, ⌊share·N⌋), drawn uniformly from unclipped tokens with a
    covariance between the bounds. ``clip`` marks them. The draw depends on the seed and the values
    of the tokens, not on their order. Frameworks draw without a seed, so their choice cannot be
    reproduced.

    Args:
        responses, records: which tokens and responses belong together; everything is per record.
        clip_cov_lb, clip_cov_ub: the bounds, exclusive.

    References:
        Cui et al., 2025 (arXiv 2505.22617).
    """
    base = clip(
        ratio,
        advantage,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=None,
        dual_clip=None,
    )
    covariance = _covariance(advantage, log_probs_new, responses, records)
    inside = (covariance > clip_cov_lb) & (covariance < clip_cov_ub) & (base.clip == 0)
    keys = (responses.lengths[responses.index], log_ratio, log_probs_new, advantage, covariance)
    out = np.zeros(len(ratio), np.bool_)
    out[_drawn(np.flatnonzero(inside), keys, responses, records, clip_cov_ratio, clip_cov_seed)] = 1
    bound = base.clip + side(out & (advantage > 0), out & (advantage < 0))
    assert base.grad_log_ratio is not None
    return Surrogate(
        np.where(out, 0.0, base.value), bound, np.where(out, 0.0, base.grad_log_ratio), None
    )


def _covariance(advantage: F64, log_probs: F64, responses: Segments, records: Segments) -> F64:
    """[N] (A − Ā)·(log π_θ − its mean), the means being those of the token's record."""
    tokens = Segments(records.sum(responses.lengths))

    def centered(values: F64) -> F64:
        sums = [added(values[part].tolist()) for part in of_records(responses, records)]
        return values - tokens.spread(sums / np.maximum(tokens.lengths, 1))

    return centered(advantage) * centered(log_probs)


def _drawn(
    candidates: I64,
    keys: Sequence[NDArray[Any]],
    responses: Segments,
    records: Segments,
    share: float,
    seed: int,
) -> I64:
    """Tokens chosen from the candidates of each record, at most max(1, ⌊share·N⌋).

    Those of a record are put in the order of the keys, the last first, and then in that of random
    numbers, which begin anew with each record; a generator's raw bits are the same in every numpy.
    """
    record = records.index[responses.index[candidates]]
    ordered = np.lexsort([*(key[candidates] for key in keys), record])
    candidates, record = candidates[ordered], record[ordered]
    counts = np.bincount(record, minlength=records.count)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(len(record)) - firsts
    drawn = np.random.PCG64(seed).random_raw(int(counts.max(initial=0)))
    ordered = np.lexsort((place, drawn[place], record))
    tokens = records.sum(responses.lengths).tolist()
    most = np.array([max(1, int(share * count)) for count in tokens], np.int64)
    kept: I64 = candidates[ordered[place < most[record]]]
    return kept


def geometric_clip(
    log_ratio: F64,
    advantage: F64,
    responses: Segments,
    counted: NDArray[np.bool_] | None,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
) -> Surrogate:
    """``gmpo``, the mean being over the tokens of ``counted`` [N] alone; None counts all of them.

    A response without tokens that count has the ratio 1.
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


choice("surrogate", "gmpo", "geo_mean", epsilon_low=0.4, epsilon_high=0.4)(
    holding(
        geometric_clip,
        """GMPO: s = A·exp((1/|o|) Σₜ cₜ), the geometric mean of the clipped token ratios.

    The clip is one-sided and on the log ratio dₜ: cₜ = min(dₜ, ε_high) if A > 0, max(dₜ, −ε_low)
    if A < 0. All tokens of the response share the value; clipped tokens have no gradient.

    Args:
        log_ratio: [N] d at token level, nats.
        epsilon_low, epsilon_high: half-widths of the clip, nats.

    References:
        Zhao et al., Geometric-Mean Policy Optimization, 2025 (arXiv 2507.20673), ε = 0.4. verl
        multiplies by the mean of A over the response.
    """,
        counted=None,
    )
)


@choice("surrogate", "real", scales=False, real_tau=0.5)
def real(
    log_ratio: F64, advantage: F64, responses: Segments, groups: Groups, *, real_tau: float
) -> Surrogate:
    """REAL: s = −[log(1 + Σ_bad e^(s̄/τ)) + log(1 + Σ_good e^(−s̄/τ))] over the group.

    A response is good if A > 0, else bad; s̄ is the mean log ratio of its tokens. All tokens of a
    group share the group's value, so ``prompt-mean`` is the mean over groups. The value is 0 if
    all responses of a group are good or all are bad. A token's gradient includes its effect on the
    whole group. Responses without tokens are ignored.

    Args:
        log_ratio: [N] log ρ, at any level.
        advantage: [N] A, of which only the sign counts.
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


_SAFE = (0.8, 1.0)  # the weight of a token that is made likelier although A < 0


@choice(
    "surrogate",
    "fipo",
    stops_gradient="the weight of the tokens to come is a constant",
    log_ratio_clamp=None,
    epsilon_low=0.2,
    epsilon_high=0.28,
    delta=10.0,
    dual_clip=None,
    fipo_decay_rate=32.0,
    fipo_clip_low=0.0,
    fipo_clip_high=0.2,
    fipo_safety_threshold=4.0,
)
def fipo(
    ratio: F64,
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    positions: I64 | None = None,
    *,
    log_ratio_clamp: ByToken | None,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    delta: ByToken | None,
    dual_clip: ByToken | None,
    fipo_decay_rate: float,
    fipo_clip_low: ByToken | None,
    fipo_clip_high: ByToken | None,
    fipo_safety_threshold: ByToken | None,
) -> Surrogate:
    """FIPO: s = sg[f]·clip surrogate, fₜ = clip(exp(Fₜ), 1−f_low, 1+f_high), Fₜ = Σₖ≥ₜ γ^(k−t)·dₖ.

    F is the discounted log ratio from the token to the end of the response, without tokens with ρ
    > δ; γ = 2^(−1/half-life). If A < 0 and ρ exceeds the safety threshold, f is also clipped to
    [0.8, 1]. The distance k − t counts masked tokens.

    Args:
        token_log_ratio: [N] d, nats.
        positions: [N] each token's index in its response, masked ones counted; None: none masked.
        log_ratio_clamp: bound on |d| in F; None: no bound.
        fipo_clip_low, fipo_clip_high: half-widths of the weight's bounds; None: no bound.
        fipo_safety_threshold: a ratio; None: no safety bound.

    References:
        Ma et al., FIPO, 2026 (arXiv 2603.19835), as in the authors' future_kl and in ms-swift.
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
    weight = np.exp(future)
    if fipo_clip_low is not None:
        weight = np.maximum(weight, 1.0 - fipo_clip_low)
    if fipo_clip_high is not None:
        weight = np.minimum(weight, 1.0 + fipo_clip_high)
    if fipo_safety_threshold is not None:
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
