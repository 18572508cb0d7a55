"""What TRL's GRPOTrainer multiplies the policy term by; its KL and its denominators stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction


def masks(
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    records: Segments,
    log_probs_new: F64 | None = None,
    log_probs_rollout: F64 | None = None,
    entropies: F64 | None = None,
    *,
    off_policy_mask_threshold: float | None,
    top_entropy_quantile: float,
) -> Correction | None:
    """TRL's off-policy sequence mask times its top-entropy mask; neither without its setting.

    c = 1[A ≥ 0 or (1/|oᵢ|) Σₜ (log μ − log π_θ) ≤ threshold] · 1[Hₜ ≥ quantile]. μ is the rollout
    engine where its log-probs are given, else the old policy. The entropy bonus is taken of the
    tokens of high entropy alone.

    Args:
        advantage: [N] A.
        token_log_ratio: [N] log π_θ − log π_old, nats.
        responses: cuts the tokens into responses.
        records: cuts them into records; the quantile is over a record, TRL's micro-batch.
        log_probs_new: [N] log π_θ, nats.
        log_probs_rollout: [N] log μ, nats.
        entropies: [N] of π_θ at each token, nats.
        off_policy_mask_threshold: nats per token; None: no such mask.
        top_entropy_quantile: the share of tokens, those of highest entropy, that is kept; 1 keeps
            all of them.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), for the sequence mask; Wang et al., 2025 (arXiv
        2506.01939), for the entropies. ms-swift takes masked rows out of the KL and of the
        denominators too.
    """
    weight = top = None
    if off_policy_mask_threshold is not None:
        behind = -token_log_ratio
        if log_probs_rollout is not None and log_probs_new is not None:
            behind = log_probs_rollout - log_probs_new
        near = responses.mean(behind) <= off_policy_mask_threshold
        weight = ((advantage >= 0) | np.repeat(near, responses.lengths)).astype(np.float64)
    if top_entropy_quantile < 1.0:
        top = top_entropy(entropies, responses, records, top_entropy_quantile)
        weight = top if weight is None else weight * top
    if weight is None:
        return None
    return Correction(weight, bonus_kept=None if top is None else top > 0.0)


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
    end = 0
    for tokens in records.sum(responses.lengths).tolist():
        start, end = end, end + tokens
        if tokens:
            single = entropies[start:end].astype(np.float32)
            least = np.quantile(single, np.float32(1.0 - share))
            kept[start:end] = single >= least
    return kept


def _with_ratio(weigh: Callable[..., F64], doc: str) -> Callable[..., Correction]:
    """``masks`` times the importance weight of the old policy against the rollout engine."""

    def correction(
        advantage: F64,
        token_log_ratio: F64,
        responses: Segments,
        records: Segments,
        log_probs_new: F64,
        log_probs_old: F64,
        log_probs_rollout: F64,
        entropies: F64 | None = None,
        *,
        off_policy_mask_threshold: float | None,
        top_entropy_quantile: float,
        is_low: float | None,
        is_high: float | None,
    ) -> Correction:
        masked = masks(
            advantage,
            token_log_ratio,
            responses,
            records,
            log_probs_new,
            log_probs_rollout,
            entropies,
            off_policy_mask_threshold=off_policy_mask_threshold,
            top_entropy_quantile=top_entropy_quantile,
        )
        bounds = (-np.inf if is_low is None else is_low, np.inf if is_high is None else is_high)
        weight = weigh(log_probs_old - log_probs_rollout, responses, *bounds)
        if masked is None:
            return Correction(weight)
        return masked._replace(weight=masked.weight * weight)

    correction.__doc__ = doc
    return correction


def _token_truncate(difference: F64, responses: Segments, low: float, high: float) -> F64:
    del responses
    return np.clip(np.exp(difference), low, high)


def _token_mask(difference: F64, responses: Segments, low: float, high: float) -> F64:
    del responses
    ratio = np.exp(difference)
    return np.where((low <= ratio) & (ratio <= high), ratio, 0.0)


def _by_response(weigh: Callable[..., F64]) -> Callable[..., F64]:
    """The weight of the product over each response's tokens, for all of them."""

    def weights(difference: F64, responses: Segments, low: float, high: float) -> F64:
        return np.repeat(weigh(responses.sum(difference), responses, low, high), responses.lengths)

    return weights


_MASKS = {"off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}
_BOUNDS = {**_MASKS, "is_low": None, "is_high": 3.0}
_PRODUCT = "with ρ of a response the product over its tokens"

CHOICES = {
    "trl/masks": Choice(masks, _MASKS),
    "trl/token-truncate": Choice(
        _with_ratio(
            _token_truncate, "TRL's token_truncate: c = clip(π_old/μ, min, max) per token."
        ),
        _BOUNDS,
    ),
    "trl/token-mask": Choice(
        _with_ratio(_token_mask, "TRL's token_mask: c = π_old/μ, 0 outside [min, max], per token."),
        _BOUNDS,
    ),
    "trl/sequence-truncate": Choice(
        _with_ratio(
            _by_response(_token_truncate),
            f"TRL's sequence_truncate: c = clip(π_old/μ, min, max), {_PRODUCT}.",
        ),
        _BOUNDS,
    ),
    "trl/sequence-mask": Choice(
        _with_ratio(
            _by_response(_token_mask),
            f"TRL's sequence_mask: c = π_old/μ, 0 outside [min, max], {_PRODUCT}.",
        ),
        _BOUNDS,
    ),
}
