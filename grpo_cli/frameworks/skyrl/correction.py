"""SkyRL's off-policy correction: weights by π_old/π_rollout, and masks that need no weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction

_CLAMP = 20.0  # SkyRL's bound on |log ratio| before it is exponentiated
Mask = NDArray[np.bool_]


def off_policy_correction(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    tis_ratio_type: str | None,
    token_tis_ratio_clip_high: float,
    sequence_tis_ratio_clip_high: float,
    sequence_mask_metric: str | None,
    geo_mask_low: float,
    geo_mask_high: float,
    product_mask_low: float,
    product_mask_high: float,
    outlier_token_is_threshold_low: float | None,
    outlier_token_is_threshold_high: float | None,
    token_mask_is_threshold_low: float | None,
    token_mask_is_threshold_high: float | None,
) -> Correction:
    """Everything that SkyRL's ``off_policy_correction`` may ask for; c is the weight, or 0.

    ρₜ = π_old/π_rollout, its logarithm bounded to ±20. In this order: a response is dropped where
    any of its ρₜ is outside of the outlier bounds, a token where its own is outside of the token
    bounds; then the weight is min(ρₜ, cap) or min(Πρ, cap) or 1; then a response is dropped by
    the geometric mean of its ρₜ or their product. What is left of a response after the first two
    makes its product and its mean. Denominators, KL and entropy keep every token.

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        responses: cuts the tokens into responses.
        tis_ratio_type: the weight: of the token or the sequence; None: 1.
        token_tis_ratio_clip_high, sequence_tis_ratio_clip_high: its caps.
        sequence_mask_metric: what drops a response: geometric or product; None: nothing.
        geo_mask_low, geo_mask_high, product_mask_low, product_mask_high: its bounds.
        outlier_token_is_threshold_low, outlier_token_is_threshold_high: of any token; None: none.
        token_mask_is_threshold_low, token_mask_is_threshold_high: of the token; both or neither.

    References:
        SkyRL a9564572, off_policy_correction_utils.py.
    """
    difference = log_probs_old - log_probs_rollout
    ratio = _exp(difference)
    bounds = (outlier_token_is_threshold_low, outlier_token_is_threshold_high)
    outlying = responses.sum((~_within(ratio, *bounds)).astype(np.int64)) > 0
    kept = responses.spread(~outlying)
    if token_mask_is_threshold_low is not None and token_mask_is_threshold_high is not None:
        kept &= _within(ratio, token_mask_is_threshold_low, token_mask_is_threshold_high)
    total = responses.sum(np.where(kept, difference, 0.0))
    if tis_ratio_type == "token":
        weight = np.minimum(ratio, token_tis_ratio_clip_high)
    elif tis_ratio_type == "sequence":
        weight = responses.spread(np.minimum(_exp(total), sequence_tis_ratio_clip_high))
    else:
        weight = np.ones(len(ratio))
    if sequence_mask_metric == "geometric":
        mean = total / np.maximum(responses.sum(kept.astype(np.int64)), 1)
        kept &= responses.spread(_within(_exp(mean), geo_mask_low, geo_mask_high))
    elif sequence_mask_metric == "product":
        kept &= responses.spread(_within(_exp(total), product_mask_low, product_mask_high))
    return Correction(np.where(kept, weight, 0.0))


def _exp(difference: F64) -> F64:
    return np.exp(np.clip(difference, -_CLAMP, _CLAMP))


def _within(ratio: F64, low: float | None, high: float | None) -> Mask:
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    return (ratio >= least) & (ratio <= most)


_USUAL: dict[str, Value] = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_low": 0.99,
    "geo_mask_high": 1.01,
    "product_mask_low": 0.5,
    "product_mask_high": 2.0,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
}

CHOICES = {"skyrl/off-policy": Choice(off_policy_correction, _USUAL)}
ALIASES = {"skyrl/off_policy_correction": "skyrl/off-policy"}
