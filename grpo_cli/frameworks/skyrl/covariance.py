"""SkyRL's covariance losses, whose denominator is in the advantages already.

SkyRL divides A by the tokens of the mini-batch before the loss, which then is a plain sum: so
``--aggregate sum`` goes with these. A record stands for the mini-batch.
"""

from __future__ import annotations

from typing import Any

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate import covariance
from grpo_cli.objective.surrogate.covariance import BAND


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
    """SkyRL's kl_cov: ``kl-cov`` of A/N, N the record's tokens; its |log ρ| is not divided by N.

    Args:
        ratio, log_ratio, advantage, log_probs_new: [N] as in ``kl-cov``.
        responses, records: cut tokens and responses.
        kl_cov_ratio: the share of the tokens held back, SkyRL's kl_cov_frac.
        ppo_kl_coef: the coefficient of |log ρ|, which outweighs A/N in a batch of any size.

    References:
        Cui et al., 2025 (arXiv 2505.22617); SkyRL a9564572.
    """
    return covariance.kl_cov(
        ratio,
        log_ratio,
        _divided(advantage, responses, records),
        log_probs_new,
        responses,
        records,
        kl_cov_ratio=kl_cov_ratio,
        ppo_kl_coef=ppo_kl_coef,
    )


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
    """SkyRL's clip_cov: ``clip-cov`` of A/N, so that its bounds are on the covariance over N.

    With its bounds of 1 and 5 hardly any token of a real batch is taken out.

    References:
        Cui et al., 2025 (arXiv 2505.22617); SkyRL a9564572.
    """
    bounds: dict[str, Any] = {
        "epsilon_low": epsilon_low,
        "epsilon_high": epsilon_high,
        "clip_cov_ratio": clip_cov_ratio,
        "clip_cov_lb": clip_cov_lb,
        "clip_cov_ub": clip_cov_ub,
        "clip_cov_seed": clip_cov_seed,
    }
    scaled = _divided(advantage, responses, records)
    return covariance.clip_cov(
        ratio, log_ratio, scaled, log_probs_new, responses, records, **bounds
    )


def _divided(advantage: F64, responses: Segments, records: Segments) -> F64:
    tokens = records.sum(responses.lengths)
    return advantage / responses.spread(records.spread(tokens))


CHOICES = {
    "skyrl/kl_cov": Choice(kl_cov, {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}),
    "skyrl/clip_cov": Choice(clip_cov, {**BAND, "clip_cov_seed": 0}),
}
