"""slime's advantages, its KL, which is clamped after its weight, and its denominator."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.advantage.batch import Advantage, over_batch, sample_rewards, standardised
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.advantage.tokens import less_own_kl
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice
from grpo_cli.objective.kl import k3, weighed_then_clamped
from grpo_cli.objective.results import Kl, Moments, PerToken, Weights


def whiten(values: F64, moments: Moments) -> F64:
    """(A − m)/√(v + 1e-8), v with ddof 1."""
    variance = moments.squares / np.maximum(moments.count - 1.0, 1.0)
    return (values - moments.mean) / np.sqrt(variance + 1e-8)


@choice("advantage", "slime/normalised", std_eps=1e-6)
@over_batch(whiten)
def normalised(rewards: F64, groups: Groups, *, std_eps: float) -> Advantage:
    """``group-std``, then (A − m)/√(v + 1e-8), ddof 1, over all tokens: ``--normalize-advantages``.

    Args:
        rewards, groups, std_eps: of ``group-std``.
        moments: of its advantages over the tokens of the batch.
    """
    return group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)


@choice("advantage", "slime/opd", std_eps=1e-6, opd_kl_coef=1.0)
def distilled(
    rewards: F64,
    groups: Groups,
    log_probs_old: F64,
    log_probs_ref: F64,
    responses: Segments,
    *,
    std_eps: float,
    opd_kl_coef: float,
) -> PerToken:
    """A = group-std − opd_kl_coef·(log π_old − log π_ref) at each token: ``--use-opd``.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        log_probs_old: [N]; log_probs_ref: [N] the teacher's.
        std_eps: added to the group's σ (ddof 1).
        opd_kl_coef: what the distance to the teacher counts.

    References:
        Lu et al., On-Policy Distillation, 2025; slime's ``apply_opd_kl_to_advantages``.
    """
    scores = group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    distance = log_probs_old - log_probs_ref
    return PerToken(responses.spread(scores) - opd_kl_coef * distance)


choice("advantage", "slime/opd-normalised", std_eps=1e-6, opd_kl_coef=1.0)(
    over_batch(
        whiten, doc="""``slime/opd``, then whitened over all tokens as ``slime/normalised``."""
    )(distilled)
)


@choice("advantage", "slime/one-group", measure=sample_rewards, std_eps=1e-6)
def one_group(rewards: F64, moments: Moments, *, std_eps: float) -> F64:
    """A = (r − r̄_batch) / (σ_batch(r) + eps), ddof 1: the whole batch as one group.

    slime does this if responses are missing, i.e. if the number of rewards is not prompts times
    n_samples_per_prompt.

    Args:
        rewards: [R] one per response.
        moments: of the rewards over the batch, one element per response.
        std_eps: added to σ; slime: 1e-6.
    """
    return standardised(rewards, moments, std_ddof=1, std_eps=std_eps)


choice("advantage", "slime/reinforce_plus_plus_baseline")(
    over_batch(
        whiten,
        doc="REINFORCE++-baseline of slime: r − r̄ − β·kₜ, whitened as (A − m)/√(v + 1e-8), ddof 1.",
    )(less_own_kl)
)


@choice("kl", "slime/low_var_kl", kl_weight="none")
def low_var_kl(
    log_ratio_ref: F64, ratio: F64, token_log_ratio: F64, *, beta: float, kl_weight: str
) -> Kl:
    """The ``low_var_kl`` of slime: k3, first weighted by ρ, then clamped to ±10.

    ``k3`` and verl's ``low_var_kl`` clamp before weighting.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), for the weight, which has a gradient.
    """
    del beta
    estimate, slope = k3(log_ratio_ref)
    if kl_weight != "token-ratio":
        return weighed_then_clamped(estimate, slope, ratio if kl_weight == "ratio" else None)
    weighed = weighed_then_clamped(estimate, slope, np.exp(token_log_ratio))
    assert weighed.grad_log_ratio is not None
    return Kl(weighed.value, weighed.grad_log_prob + weighed.grad_log_ratio, None)


@choice("aggregate", "slime/token-mean")
def slime_token_mean(lengths: I64) -> Weights:
    """``token-mean``, but an empty response counts as one token: ``--calculate-per-token-loss``."""
    counts = np.maximum(lengths, 1).astype(np.float64)
    return Weights(np.ones(len(lengths)), counts, 1.0, "tokens, and 1 per response without any")
