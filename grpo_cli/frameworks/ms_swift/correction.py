"""ms-swift's rollout corrections, which weigh the KL too, and its masks.

The entropy mask takes a token out of the policy term alone. A response that the off-policy mask
removes is gone from the policy term, from the KL and from the token counts (bnpo's, and each
response's own), but still counts as a response.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.frameworks.trl.correction import top_entropy
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction

_FARTHEST = 20.0


def off_policy_mask(
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
    """Removes a response where its mean A < 0 and the mean of log μ − log π_θ > threshold.

    μ is the rollout engine where its log-probs are given, else the old policy.

    Args:
        advantage: [N] A.
        token_log_ratio: [N] log π_θ − log π_old, nats.
        responses: cuts the tokens into responses.
        log_probs_new: [N] log π_θ, nats.
        log_probs_rollout: [N] log μ, nats.
        entropies: [N] of π_θ at each token, nats.
        off_policy_mask_threshold: nats per token; None: no mask.
        top_entropy_quantile: the share of a record's tokens, those of highest entropy, that keep
            their policy term; 1: all of them.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556); ms-swift, off_policy_sequence_mask_delta and
        top_entropy_quantile.
    """
    top = None
    if top_entropy_quantile < 1.0:
        top = top_entropy(entropies, responses, records, top_entropy_quantile)
    if off_policy_mask_threshold is None:
        return None if top is None else Correction(top)
    behind = -token_log_ratio
    if log_probs_rollout is not None and log_probs_new is not None:
        behind = log_probs_rollout - log_probs_new
    far = responses.mean(behind) > off_policy_mask_threshold
    kept = np.repeat(~(far & (responses.mean(advantage) < 0)), responses.lengths)
    weight = kept.astype(np.float64)
    return Correction(weight if top is None else weight * top, weight, kept)


def _with_weight(weigh: Callable[[F64, Segments, float], F64], doc: str) -> Callable[..., object]:
    """The mask times a weight of the old policy against the engine, on policy term and KL alike."""

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
        is_high: float | None,
    ) -> Correction:
        difference = np.clip(log_probs_old - log_probs_rollout, -_FARTHEST, _FARTHEST)
        weight = weigh(difference, responses, np.inf if is_high is None else is_high)
        masked = off_policy_mask(
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
        if masked is None:
            return Correction(weight, weight)
        kl_weight = weight if masked.kl_weight is None else weight * masked.kl_weight
        return Correction(weight * masked.weight, kl_weight, masked.kept)

    correction.__doc__ = doc
    return correction


def _token_truncate(difference: F64, responses: Segments, high: float) -> F64:
    del responses
    return np.minimum(np.exp(difference), high)


def _token_mask(difference: F64, responses: Segments, high: float) -> F64:
    del responses
    ratio = np.exp(difference)
    return np.where(ratio <= high, ratio, 0.0)


def _sequence_truncate(difference: F64, responses: Segments, high: float) -> F64:
    return np.repeat(np.minimum(_geometric(difference, responses), high), responses.lengths)


def _sequence_mask(difference: F64, responses: Segments, high: float) -> F64:
    inside = np.repeat(_geometric(difference, responses) <= high, responses.lengths)
    return np.where(inside, np.exp(difference), 0.0)


def _geometric(difference: F64, responses: Segments) -> F64:
    """[R] the geometric mean of each response's ratios."""
    geometric: F64 = np.exp(responses.mean(difference))
    return geometric


_MASK = {"off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}
_BOUND = {**_MASK, "is_high": 2.0}

CHOICES = {
    "ms-swift/off-policy-mask": Choice(off_policy_mask, _MASK),
    "ms-swift/token-truncate": Choice(
        _with_weight(_token_truncate, "ms-swift's token_truncate: c = min(π_old/μ, C) per token."),
        _BOUND,
    ),
    "ms-swift/token-mask": Choice(
        _with_weight(_token_mask, "ms-swift's token_mask: c = π_old/μ, 0 above C, per token."),
        _BOUND,
    ),
    "ms-swift/sequence-truncate": Choice(
        _with_weight(
            _sequence_truncate,
            "ms-swift's sequence_truncate: c = min(ρ, C), ρ the geometric mean of π_old/μ.",
        ),
        _BOUND,
    ),
    "ms-swift/sequence-mask": Choice(
        _with_weight(
            _sequence_mask,
            "ms-swift's sequence_mask: c = π_old/μ per token, 0 where the geometric mean > C.",
        ),
        _BOUND,
    ),
}
