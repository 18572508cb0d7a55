"""Surrogates that hold back the tokens whose covariance drives the entropy down.

The covariance of a token is (A − Ā)·(log π_θ − mean log π_θ), the means and the ranks being those
of its record: they cannot be taken over a stream. Equal covariances are told apart by the
tokens' values, never by where they stand, so the order of the responses changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side, times
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
    for tokens, order in _ranked(advantage, log_probs_new, log_ratio, responses, records):
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
    free = base.clip == 0
    out = np.zeros(len(ratio), np.bool_)
    for tokens, order in _ranked(advantage, log_probs_new, log_ratio, responses, records):
        covariance = _covariance(advantage[tokens], log_probs_new[tokens])[order]
        inside = (covariance > clip_cov_lb) & (covariance < clip_cov_ub) & free[tokens][order]
        count = max(1, int(clip_cov_ratio * len(order)))
        out[tokens][_draw(order[inside], count, clip_cov_seed)] = True
    bound = base.clip + side(out & (advantage > 0), out & (advantage < 0))
    assert base.grad_log_ratio is not None
    return Surrogate(
        np.where(out, 0.0, base.value), bound, np.where(out, 0.0, base.grad_log_ratio), None
    )


def _ranked(
    advantage: F64, log_probs: F64, log_ratio: F64, responses: Segments, records: Segments
) -> Iterator[tuple[slice, I64]]:
    """Each record's tokens, and their indices in rising order of covariance."""
    lengths = responses.lengths[responses.index]
    end = 0
    for count in records.sum(responses.lengths).tolist():
        tokens = slice(end, end + count)
        end += count
        if count:
            keys = (lengths, log_ratio, log_probs, advantage)
            covariance = _covariance(advantage[tokens], log_probs[tokens])
            yield tokens, np.lexsort((*(key[tokens] for key in keys), covariance))


def _covariance(advantage: F64, log_probs: F64) -> F64:
    return _centered(advantage) * _centered(log_probs)


def _centered(values: F64) -> F64:
    return values - added(values.tolist()) / len(values)


def _draw(candidates: I64, count: int, seed: int) -> I64:
    """``count`` of the candidates; a generator's raw bits are the same in every numpy."""
    keys = np.random.PCG64(seed).random_raw(len(candidates))
    return candidates[np.argsort(keys, kind="stable")[:count]]


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
