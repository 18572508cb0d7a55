"""Surrogates that TRL computes otherwise than the papers."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.frameworks.trl.correction import top_entropy
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, side
from grpo_cli.objective.surrogate.clip import clip
from grpo_cli.objective.surrogate.coupled import geometric_clip


def trl_cispo(ratio: F64, advantage: F64, log_probs_new: F64, *, epsilon_high: float) -> Surrogate:
    """TRL's CISPO: s = sg[min(ρ, ε_high)]·A·log π_θ; the cap is ε_high itself, not 1 + ε_high.

    There is no lower bound. With TRL's default ε_high (that of ε, 0.2) every ratio is capped at
    0.2; the TRL paper index gives ScaleRL's 5.0. ``clip`` marks every capped token, TRL's
    cispo_clip_ratio only those with A > 0.

    Args:
        ratio: [N] ρ.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        epsilon_high: the cap on the ratio.

    References:
        MiniMax-M1, 2025 (arXiv 2506.13585); TRL, GRPOTrainer, loss_type cispo.
    """
    capped = np.minimum(ratio, epsilon_high) * advantage
    high = (ratio > epsilon_high) & (advantage != 0)
    return Surrogate(capped * log_probs_new, side(high, np.zeros_like(high)), None, capped)


def trl_rloo(
    ratio: F64,
    advantage: F64,
    response_advantage: F64 | None = None,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> Surrogate:
    """TRL's RLOOTrainer: ``clip``; a response without tokens has ratio 1, so s = A.

    That happens to truncated responses with mask_truncated_completions: they move the value of
    the loss and nothing else.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740); TRL, RLOOTrainer.
    """
    bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    clipped = clip(ratio, advantage, **bounds, delta=None, dual_clip=None)
    return clipped._replace(empty=response_advantage)


def trl_gmpo(
    token_log_ratio: F64,
    advantage: F64,
    responses: Segments,
    records: Segments,
    response_advantage: F64 | None = None,
    entropies: F64 | None = None,
    *,
    epsilon_low: float,
    epsilon_high: float,
    top_entropy_quantile: float,
) -> Surrogate:
    """TRL's GMPO: ``gmpo`` over the tokens of high entropy; a response without tokens has s = A.

    Args:
        token_log_ratio: [N] log π_θ − log π_old, nats.
        advantage: [N] A.
        responses: cuts the tokens into responses.
        records: cuts them into records; the quantile is over a record, TRL's micro-batch.
        response_advantage: [R] A.
        entropies: [N] of π_θ at each token, nats.
        epsilon_low, epsilon_high: half-widths of the clip, nats.
        top_entropy_quantile: the share of tokens, those of highest entropy, that the geometric
            mean is over; 1 takes all of them.

    References:
        Zhao et al., Geometric-Mean Policy Optimization, 2025 (arXiv 2507.20673); TRL, GMPOTrainer.
    """
    top = None
    if top_entropy_quantile < 1.0:
        top = top_entropy(entropies, responses, records, top_entropy_quantile) > 0.0
    clipped = geometric_clip(token_log_ratio, advantage, responses, top, epsilon_low, epsilon_high)
    return clipped._replace(empty=response_advantage)


CHOICES = {
    "trl/cispo": Choice(
        trl_cispo,
        {"epsilon_high": 0.2},
        stops_gradient="the capped ratio is a constant weight of log π_θ",
    ),
    "trl/rloo": Choice(trl_rloo, {"epsilon_low": 0.2, "epsilon_high": 0.2}),
    "trl/gmpo": Choice(
        trl_gmpo, {"epsilon_low": 0.4, "epsilon_high": 0.4, "top_entropy_quantile": 1.0}
    ),
}
