"""SkyRL's advantages, policy losses (negated) and off-policy correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.frameworks.verl.advantage import grpo
from grpo_cli.frameworks.verl.choices import padded_binary_kl
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, Composed, Usual, call, choice, parameters, table
from grpo_cli.objective.correction import within
from grpo_cli.objective.results import Correction, Moments, Sample, Surrogate, side
from grpo_cli.objective.surrogate.joint import BAND, clip_cov, kl_cov


@choice("advantage", "skyrl/maxrl")
def maxrl(rewards: F64, groups: Groups) -> F64:
    """A = (s − μ) / (μ + 1e-6) over the group; A = s for a group of one.

    Meant for rewards of 0 and 1: a negative mean flips the sign.

    References:
        Tajwar et al., MaxRL, 2026 (arXiv 2602.02710).
    """
    means = groups.sum(rewards) / np.maximum(groups.sizes, 1)
    alone = groups.sizes[groups.index] == 1
    return np.where(alone, rewards, groups.offsets(rewards) / (means[groups.index] + 1e-6))


def _over_tokens(rewards: F64, groups: Groups, lengths: I64) -> Sample:
    return Sample(grpo(rewards, groups), lengths.astype(np.float64))


@choice("advantage", "skyrl/batch-normalised", measure=_over_tokens)
def batch_normalised(
    rewards: F64,
    groups: Groups,
    moments: Moments,
    *,
    response_length: float,
    global_batch_size: float,
) -> F64:
    """``verl/grpo`` with ``advantage_batch_normalize``: (A − m)/√max(v, 1e-8).

    m is the sum of A over the tokens divided by all positions of the padded batch, including
    masked and padded ones; v is the mean of (A − m)² over the tokens.

    Args:
        moments: mean and std of ``verl/grpo`` over the tokens of the batch.
        response_length: the padded width of the table.
        global_batch_size: its rows, the responses of the training batch.

    References:
        SkyRL a9564572, trainer.py, ``normalize_minibatch_advantages``.
    """
    mean = moments.mean * moments.count / (response_length * global_batch_size)
    variance = moments.squares / np.maximum(moments.count, 1.0) + np.square(moments.mean - mean)
    return (grpo(rewards, groups) - mean) / np.sqrt(np.maximum(variance, 1e-8))


_CLAMP = 20.0  # SkyRL's bound on |log ratio| before it is exponentiated


@choice(
    "surrogate",
    "skyrl/rollout_is",
    stops_gradient="the ratio to the engine is a constant weight of log π_θ",
    epsilon_low=0.2,
    epsilon_high=0.2,
)
def rollout_is(
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
) -> Surrogate:
    """SkyRL's rollout_is: s = sg[f]·A·log π_θ, f = r if r is in (1 − ε_low, 1 + ε_high), else 0.

    Args:
        log_probs_rollout: [N] log π_rollout, nats; r = π_θ/π_rollout.
        epsilon_low: the window begins at 1 − ε_low, exclusive.
        epsilon_high: the window ends at 1 + ε_high, exclusive.

    References:
        GLM-5, 2026 (arXiv 2602.15763); IcePop's rule, on the ratio to the engine.
    """
    ratio = np.exp(np.clip(log_probs_new - log_probs_rollout, -_CLAMP, _CLAMP))
    high, low = ratio >= 1.0 + epsilon_high, ratio <= 1.0 - epsilon_low
    slope = np.where(high | low, 0.0, ratio * advantage)
    return Surrogate(slope * log_probs_new, side(high, low) * (advantage != 0), None, slope)


@choice("surrogate", "skyrl/dppo_tv", divergence_low=0.2, divergence_high=0.2)
def dppo_tv(
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    log_probs_rollout: F64 | None = None,
    *,
    divergence_low: ByToken,
    divergence_high: ByToken,
) -> Surrogate:
    """SkyRL's dppo, binary TV: s = r·A·M, with the gradient through r.

    π is the engine's policy if the record has it, else π_old; r = π_θ/π. M is 0 if A > 0 and π_θ −
    π > δ_high, or if A < 0 and π − π_θ > δ_low.

    Args:
        log_probs_rollout: [N] the engine's, nats; None: the record has none.
        divergence_low: δ_low, in probability.
        divergence_high: δ_high, in probability.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879).
    """
    anchor = log_probs_old if log_probs_rollout is None else log_probs_rollout
    moved = np.exp(log_probs_new) - np.exp(anchor)
    high = (advantage > 0) & (moved > divergence_high)
    low = (advantage < 0) & (-moved > divergence_low)
    return _anchored(advantage, log_probs_new - anchor, high, low)


@choice("surrogate", "skyrl/dppo_kl", divergence_low=0.2, divergence_high=0.2)
def dppo_kl(
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    log_probs_rollout: F64 | None = None,
    *,
    divergence_low: ByToken,
    divergence_high: ByToken,
) -> Surrogate:
    """SkyRL's dppo, binary KL: ``skyrl/dppo_tv`` with the binary KL as the distance.

    M is 0 if A > 0, π_θ > π and the KL is above δ_high, or if A < 0, π_θ < π and the KL is above
    δ_low. The KL is π·log(π/π_θ) + (1 − π)·log((1 − π + 1e-8)/(1 − π_θ + 1e-8)), nats.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879), equation 14.
    """
    anchor = log_probs_old if log_probs_rollout is None else log_probs_rollout
    divergence, risen = padded_binary_kl(anchor, log_probs_new)
    high = (advantage > 0) & (risen > 0) & (divergence > divergence_high)
    low = (advantage < 0) & (risen < 0) & (divergence > divergence_low)
    return _anchored(advantage, log_probs_new - anchor, high, low)


def _anchored(
    advantage: F64, difference: F64, high: NDArray[np.bool_], low: NDArray[np.bool_]
) -> Surrogate:
    ratio = np.exp(np.clip(difference, -_CLAMP, _CLAMP))
    value = np.where(high | low, 0.0, ratio * advantage)
    slope = np.where(np.abs(difference) <= _CLAMP, value, 0.0)
    return Surrogate(value, side(high, low), None, slope)


def _divided(function: Callable[..., Surrogate], doc: str) -> Composed:
    """A surrogate of A/N, N the record's tokens.

    SkyRL divides A by the tokens of the mini-batch before the loss, which then is a plain sum: so
    ``--aggregate sum`` goes with it. A record is treated as the mini-batch.
    """

    def run(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Surrogate:
        responses, records = columns["responses"], columns["records"]
        tokens = responses.spread(records.spread(records.sum(responses.lengths)))
        found: Surrogate = call(
            function, {**columns, "advantage": columns["advantage"] / tokens}, values
        )
        return found

    return Composed(parameters(function), run, doc)


kl_cov_divided = _divided(
    kl_cov,
    """SkyRL's kl_cov: ``kl-cov`` of A/N, N the record's tokens; its |log ρ| is not divided by N.

    Args:
        ratio, log_ratio, advantage, log_probs_new: [N] as in ``kl-cov``.
        kl_cov_ratio: the share of penalised tokens, SkyRL's kl_cov_frac. ppo_kl_coef: the
        coefficient of |log ρ|, which outweighs A/N in a batch of any size.

    References:
        Cui et al., 2025 (arXiv 2505.22617); SkyRL a9564572.
""",
)
choice("surrogate", "skyrl/kl_cov", scales=False, kl_cov_ratio=0.2, ppo_kl_coef=1.0)(kl_cov_divided)
clip_cov_divided = _divided(
    clip_cov,
    """SkyRL's clip_cov: ``clip-cov`` of A/N, so that its bounds are on the covariance over N.

    With its bounds of 1 and 5, it drops almost no token of a real batch.

    References:
        Cui et al., 2025 (arXiv 2505.22617); SkyRL a9564572.
""",
)
choice("surrogate", "skyrl/clip_cov", scales=False, **BAND, clip_cov_seed=0)(clip_cov_divided)


_USUAL: Usual = {
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


@choice("correction", "skyrl/off-policy", "skyrl/off_policy_correction", **_USUAL)
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
    """SkyRL's ``off_policy_correction``: c is the weight, or 0 for dropped tokens.

    ρₜ = π_old/π_rollout, with its logarithm clamped to ±20. The steps, in order: drop responses
    with any ρₜ outside the outlier bounds; drop tokens with ρₜ outside the token bounds; compute
    the weight, which is min(ρₜ, cap), min(Πρ, cap) or 1; drop responses by the geometric mean or
    the product of ρₜ. Product and mean use only tokens that were not dropped before. Denominators,
    KL and entropy count every token.

    Args:
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
    outlying = responses.sum((~within(ratio, *bounds)).astype(np.int64)) > 0
    kept = responses.spread(~outlying)
    if token_mask_is_threshold_low is not None and token_mask_is_threshold_high is not None:
        kept &= within(ratio, token_mask_is_threshold_low, token_mask_is_threshold_high)
    total = responses.sum(np.where(kept, difference, 0.0))
    if tis_ratio_type == "token":
        weight = np.minimum(ratio, token_tis_ratio_clip_high)
    elif tis_ratio_type == "sequence":
        weight = responses.spread(np.minimum(_exp(total), sequence_tis_ratio_clip_high))
    else:
        weight = np.ones(len(ratio))
    if sequence_mask_metric == "geometric":
        mean = total / np.maximum(responses.sum(kept.astype(np.int64)), 1)
        kept &= responses.spread(within(_exp(mean), geo_mask_low, geo_mask_high))
    elif sequence_mask_metric == "product":
        kept &= responses.spread(within(_exp(total), product_mask_low, product_mask_high))
    return Correction(np.where(kept, weight, 0.0))


def _exp(difference: F64) -> F64:
    return np.exp(np.clip(difference, -_CLAMP, _CLAMP))


table("ratio", "skyrl").aliases["skyrl/sequence-token"] = "verl/sequence-token"
table("advantage", "skyrl").aliases.update(
    {
        "skyrl/grpo": "verl/grpo",
        "skyrl/grpo_nostd": "verl/grpo_nostd",
        "skyrl/rloo": "leave-one-out",
    }
)
table("aggregate", "skyrl").aliases.update(
    {
        "token_mean": "token-mean",
        "sequence_mean": "response-mean",
        "seq_mean_token_sum_norm": "token-sum-norm",
        "prompt_mean": "prompt-mean",
    }
)
