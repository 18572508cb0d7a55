"""What TRL computes otherwise than the papers: RLOO's advantage, surrogates, corrections.

Corrections multiply the policy term; KL and denominators stay.
"""

from __future__ import annotations

import math

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.advantage.batch import over_batch, standardised
from grpo_cli.objective.advantage.group import leave_one_out
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, Usual, choice
from grpo_cli.objective.correction import (
    Bound,
    Weigh,
    by_product,
    by_token,
    chain,
    importance,
    masked,
    truncated,
)
from grpo_cli.objective.results import Correction, Surrogate, side, unbound
from grpo_cli.objective.surrogate.clip import clip, of_records
from grpo_cli.objective.surrogate.joint import geometric_clip


@choice("advantage", "trl/rloo-normalised", std_ddof=1, std_eps=1e-4)
@over_batch(standardised, each="response")
def rloo_normalised(rewards: F64, groups: Groups) -> F64:
    """A = (x − x̄_batch) / (σ_batch(x) + eps), where x is the ``leave-one-out`` advantage.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262), as in TRL's paper index.
    """
    return leave_one_out(rewards, groups)


def off_policy_mask(
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    log_probs_new: F64 | None = None,
    log_probs_rollout: F64 | None = None,
    *,
    off_policy_mask_threshold: float | None,
) -> Correction | None:
    """TRL's off-policy sequence mask: 0 where A < 0 and the response is far off-policy."""
    if off_policy_mask_threshold is None:
        return None
    behind = behind_engine(token_log_ratio, log_probs_new, log_probs_rollout)
    near = responses.mean(behind) <= off_policy_mask_threshold
    return Correction(((advantage >= 0) | responses.spread(near)).astype(np.float64))


def behind_engine(
    token_log_ratio: F64, log_probs_new: F64 | None, log_probs_rollout: F64 | None
) -> F64:
    """[N] log μ − log π_θ, μ the rollout engine where its log-probs are given, else π_old."""
    if log_probs_rollout is not None and log_probs_new is not None:
        return log_probs_rollout - log_probs_new
    return -token_log_ratio


def entropy_mask(
    responses: Segments,
    records: Segments,
    entropies: F64 | None = None,
    *,
    top_entropy_quantile: float,
) -> Correction | None:
    """TRL's top-entropy mask; the entropy bonus is taken of the tokens that it keeps."""
    if top_entropy_quantile >= 1.0:
        return None
    top = top_entropy(entropies, responses, records, top_entropy_quantile)
    return Correction(top, bonus_kept=top > 0.0)


def top_entropy(entropies: F64 | None, responses: Segments, records: Segments, share: float) -> F64:
    """[N] 1 for the tokens of each record whose entropy is in its upper ``share``.

    TRL's entropies are in single precision: so are they here, where the quantile is interpolated
    and where they are compared with it.
    """
    if entropies is None:
        raise InputError(
            "missing; top_entropy_quantile needs one entropy per token", path="entropies", record=0
        )
    kept = np.zeros(len(entropies))
    for tokens in of_records(responses, records):
        single = entropies[tokens].astype(np.float32)
        if len(single):
            kept[tokens] = single >= np.quantile(single, np.float32(1.0 - share))
    return kept


MASKS: Usual = {"off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}

masks = chain(
    """TRL's off-policy sequence mask times its top-entropy mask; both are off by default.

    c = 1[A ≥ 0 or (1/|oᵢ|) Σₜ (log μ − log π_θ) ≤ threshold] · 1[Hₜ ≥ quantile]. μ is the rollout
    engine if its log-probs are given, else the old policy. The entropy bonus covers only the
    tokens that the top-entropy mask keeps.

    Args:
        records: which tokens belong to each record; the quantile is over a record (TRL: over a
            micro-batch).
        log_probs_rollout: [N] log μ, nats.
        off_policy_mask_threshold: nats per token; None: no such mask.
        top_entropy_quantile: the share of tokens, those of highest entropy, that is kept; 1 keeps
            all of them.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), for the sequence mask; Wang et al., 2025 (arXiv
        2506.01939), for the entropies. ms-swift also removes masked rows from the KL and from the
        denominators.
    """,
    off_policy_mask,
    entropy_mask,
)
choice("correction", "trl/masks", **MASKS)(masks)


def _with_ratio(name: str, weigh: Weigh, doc: str) -> None:
    """Registers the masks times the weight of the old policy against the rollout engine."""
    made = chain(doc, off_policy_mask, entropy_mask, importance(weigh, doc))
    choice("correction", f"trl/{name}", **MASKS, is_low=None, is_high=3.0)(made)


_PRODUCT = "with ρ of a response the product over its tokens"

_with_ratio(
    "token-truncate",
    by_token(truncated),
    "TRL's token_truncate: c = clip(π_old/μ, min, max) per token.",
)
_with_ratio(
    "token-mask",
    by_token(masked),
    "TRL's token_mask: c = π_old/μ, 0 outside [min, max], per token.",
)
_with_ratio(
    "sequence-truncate",
    by_product(truncated),
    f"TRL's sequence_truncate: c = clip(π_old/μ, min, max), {_PRODUCT}.",
)
_with_ratio(
    "sequence-mask",
    by_product(masked),
    f"TRL's sequence_mask: c = π_old/μ, 0 outside [min, max], {_PRODUCT}.",
)


@choice(
    "surrogate",
    "trl/cispo",
    stops_gradient="the capped ratio is a constant weight of log π_θ",
    epsilon_high=0.2,
)
def trl_cispo(
    ratio: F64, advantage: F64, log_probs_new: F64, *, epsilon_high: ByToken
) -> Surrogate:
    """TRL's CISPO: s = sg[min(ρ, ε_high)]·A·log π_θ; the cap is ε_high itself, not 1 + ε_high.

    There is no lower bound. With TRL's default ε_high of 0.2, every ratio above 0.2 is capped;
    TRL's paper index recommends ScaleRL's 5.0. ``clip`` marks every capped token, TRL's
    cispo_clip_ratio only those with A > 0.

    Args:
        epsilon_high: the cap on the ratio.

    References:
        MiniMax-M1, 2025 (arXiv 2506.13585); TRL, GRPOTrainer, loss_type cispo.
    """
    capped = np.minimum(ratio, epsilon_high) * advantage
    high = (ratio > epsilon_high) & (advantage != 0)
    return Surrogate(capped * log_probs_new, side(high, np.zeros_like(high)), None, capped)


@choice("surrogate", "trl/rloo", epsilon_low=0.2, epsilon_high=0.2)
def trl_rloo(
    ratio: F64,
    advantage: F64,
    response_advantage: F64 | None = None,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
) -> Surrogate:
    """TRL's RLOOTrainer: ``clip``; a response without tokens has ratio 1, so s = A.

    This occurs for truncated responses with mask_truncated_completions. They change the value of
    the loss but not its gradient.

    References:
        Ahmadian et al., Back to Basics (RLOO), 2024 (arXiv 2402.14740); TRL, RLOOTrainer.
    """
    bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    clipped = clip(ratio, advantage, **bounds, delta=None, dual_clip=None)
    return clipped._replace(empty=response_advantage)


@choice("surrogate", "trl/gmpo", epsilon_low=0.4, epsilon_high=0.4, top_entropy_quantile=1.0)
def trl_gmpo(
    token_log_ratio: F64,
    advantage: F64,
    responses: Segments,
    records: Segments,
    response_advantage: F64 | None = None,
    entropies: F64 | None = None,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    top_entropy_quantile: float,
) -> Surrogate:
    """TRL's GMPO: ``gmpo`` over the tokens of high entropy; a response without tokens has s = A.

    Args:
        records: which tokens belong to each record; the quantile is over a record (TRL: over a
            micro-batch).
        epsilon_low, epsilon_high: half-widths of the clip, nats.
        top_entropy_quantile: the share of tokens, those of highest entropy, that the geometric
            mean is over; 1 takes all of them.

    References:
        Zhao et al., Geometric-Mean Policy Optimization, 2025 (arXiv 2507.20673); TRL, GMPOTrainer.
    """
    top = None
    if top_entropy_quantile < 1.0:
        top = top_entropy(entropies, responses, records, top_entropy_quantile) > 0.0
    bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    clipped = geometric_clip(token_log_ratio, advantage, responses, top, **bounds)
    return clipped._replace(empty=response_advantage)


_LEAST = math.log(1e-8)
_MOST = 20.0
_LEAST_RATE = 1e-4
_STOPS = "the shaped ratio is a constant weight of log π_θ"
_SHAPES: Usual = {
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
}


@choice("surrogate", "trl/vespo", stops_gradient=_STOPS, **_SHAPES)
def trl_vespo(
    token_log_ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    *,
    vespo_k_pos: ByToken,
    vespo_lambda_pos: ByToken,
    vespo_k_neg: ByToken,
    vespo_lambda_neg: ByToken,
) -> Surrogate:
    """TRL's VESPO: s = sg[φ(W)]·A·log π_θ, φ(W) = Wᵏ·exp(λ·(1−W)), log W = Σₜ dₜ, clamped.

    dₜ is clamped to ±20, log W to [log 1e-8, 20], and λ to at least 1e-4; a φ that is not finite
    becomes 0. W is always the product over the response. k and λ depend on the sign of A.

    References:
        Shen et al., VESPO, 2026 (arXiv 2602.10693); TRL, GRPOTrainer, loss_type vespo.
    """
    total = responses.sum(np.clip(token_log_ratio, -_MOST, _MOST))
    shapes = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
    return _faded(total, advantage, log_probs_new, responses, shapes)


def _faded(
    total: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    shapes: tuple[ByToken, ByToken, ByToken, ByToken],
) -> Surrogate:
    k_pos, lambda_pos, k_neg, lambda_neg = shapes
    gaining = advantage >= 0
    power = np.where(gaining, k_pos, k_neg)
    rate = np.maximum(np.where(gaining, lambda_pos, lambda_neg), _LEAST_RATE)
    log_weight = np.repeat(np.clip(total, _LEAST, _MOST), responses.lengths)
    fade = np.exp(rate + power * log_weight - rate * np.exp(log_weight))
    weighted = np.where(np.isfinite(fade), fade, 0.0) * advantage
    return Surrogate(weighted * log_probs_new, unbound(len(weighted)), None, weighted)


def _clamped_log(ratio: F64) -> F64:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(ratio), _LEAST, _MOST)


def _with_mismatch(name: str, bound: Bound, doc: str) -> None:
    """Registers ``trl_vespo`` with log W = Σₜ dₜ + log of the bounded π_old/μ, that too clamped."""
    by_response = name.startswith("sequence")

    def surrogate(
        token_log_ratio: F64,
        advantage: F64,
        log_probs_new: F64,
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        *,
        vespo_k_pos: float,
        vespo_lambda_pos: float,
        vespo_k_neg: float,
        vespo_lambda_neg: float,
        is_low: float | None,
        is_high: float | None,
    ) -> Surrogate:
        difference = log_probs_old - log_probs_rollout
        if by_response:
            mismatch = _clamped_log(bound(np.exp(responses.sum(difference)), is_low, is_high))
        else:
            mismatch = responses.sum(_clamped_log(bound(np.exp(difference), is_low, is_high)))
        moved = responses.sum(np.clip(token_log_ratio, -_MOST, _MOST))
        shapes = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
        return _faded(moved + mismatch, advantage, log_probs_new, responses, shapes)

    surrogate.__doc__ = doc
    usual: Usual = {**_SHAPES, "is_low": None, "is_high": 3.0}
    choice("surrogate", f"trl/vespo-{name}", stops_gradient=_STOPS, **usual)(surrogate)


_REFUSED = """

    GRPOTrainer refuses this mode for vespo when it is built; its loss has this value where the
    mode is set afterwards."""

_with_mismatch(
    "token-truncate", truncated, "TRL's VESPO with clip(π_old/μ, min, max) of each token in W."
)
_with_mismatch(
    "token-mask", masked, "TRL's VESPO with π_old/μ of each token in W; 1e-8 outside [min, max]."
)
_with_mismatch(
    "sequence-truncate",
    truncated,
    "TRL's VESPO with clip(Π π_old/μ, min, max) of the response in W." + _REFUSED,
)
_with_mismatch(
    "sequence-mask",
    masked,
    "TRL's VESPO with Π π_old/μ of the response in W; 1e-8 outside [min, max]." + _REFUSED,
)
