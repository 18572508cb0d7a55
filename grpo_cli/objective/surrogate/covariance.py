"""Surrogates that hold back the tokens whose covariance drives the entropy down.

The covariance of a token is (A − Ā)·(log π_θ − mean log π_θ), the means and the ranks being those
of its record: they cannot be taken over a stream. Equal covariances are told apart by the
tokens' values, never by where they stand, so the order of the responses changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side, times
from grpo_cli.objective.surrogate.adaptive import of_records
from grpo_cli.objective.surrogate.clip import clip


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
    """KL-Cov: s = ρ·A, less coef·|log ρ| at the tokens of greatest covariance; nothing is clipped.

    Args:
        ratio, log_ratio: [N] ρ, log ρ.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        responses, records: cut tokens and responses; k and the covariance are per record.
        kl_cov_ratio: the share of a record's N tokens that is held back, k = max(1, ⌊share·N⌋).
        ppo_kl_coef: the coefficient.

    References:
        Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025 (arXiv
        2505.22617). verl's config has share 0.0002 and coefficient 0.1, SkyRL's 0.2 and 1.0.
    """
    held = np.zeros(len(ratio))
    covariance = _covariance(advantage, log_probs_new, responses, records)
    keys = (responses.lengths[responses.index], log_ratio, log_probs_new, advantage, covariance)
    for tokens in of_records(responses, records):
        order = np.lexsort([key[tokens] for key in keys])
        count = max(1, int(kl_cov_ratio * len(order)))
        held[tokens][order[len(order) - count :]] = ppo_kl_coef
    gain = times(ratio, advantage)
    value = gain - held * np.abs(log_ratio)
    slope = gain - held * np.sign(log_ratio)
    return Surrogate(value, np.zeros(len(ratio), np.int8), slope, None)


def clip_cov(
    ratio: F64,
    log_ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    records: Segments,
    *,
    epsilon_low: float,
    epsilon_high: float,
    clip_cov_ratio: float,
    clip_cov_lb: float,
    clip_cov_ub: float,
    clip_cov_seed: int,
) -> Surrogate:
    """Clip-Cov: PPO's clip, and value and slope 0 at some tokens of great covariance, at random.

    Of a record's N tokens max(1, ⌊share·N⌋) are taken out, chosen uniformly among those that the
    clip did not bound and whose covariance is between the bounds. ``clip`` marks them as bound.
    The choice depends on the seed and on the tokens' values, not on their order, and is no
    framework's: those draw from an unseeded generator.

    Args:
        ratio, log_ratio: [N] ρ, log ρ.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        responses, records: cut tokens and responses; everything is per record.
        epsilon_low, epsilon_high: of the clip.
        clip_cov_ratio: the share.
        clip_cov_lb, clip_cov_ub: the bounds, exclusive.
        clip_cov_seed: of the choice.

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
    counts = records.sum(responses.lengths)
    ends = np.concatenate(([0], np.cumsum(counts))).tolist()

    def centered(values: F64) -> F64:
        flat = values.tolist()
        means = [added(flat[start:end]) / max(end - start, 1) for start, end in pairwise(ends)]
        return values - np.repeat(means, counts)

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


BAND = {
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "clip_cov_ratio": 0.0002,
    "clip_cov_lb": 1.0,
    "clip_cov_ub": 5.0,
}

CHOICES = {
    "kl-cov": Choice(kl_cov, {"kl_cov_ratio": 0.0002, "ppo_kl_coef": 1.0}),
    "clip-cov": Choice(clip_cov, BAND),
}
ALIASES = {"kl_cov": "kl-cov", "clip_cov": "clip-cov"}
