"""slime's REINFORCE++-baseline, its group norm of unequal groups, whitening and distillation."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.batch import scaled as advantages_scaled
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.advantage.kl_in_reward import (
    Advantage,
    over_tokens,
    own_penalty,
    scaled,
)
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, PerToken, Sample


def slime_baseline(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
) -> Advantage:
    """REINFORCE++-baseline of slime: r − r̄ − β·kₜ, whitened as (A − m)/√(v + 1e-8), ddof 1."""
    advantage = own_penalty(task_rewards, groups, token_penalty, responses)
    return _whitened(advantage, responses, moments)


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


def normalised(
    rewards: F64, groups: Groups, responses: Segments, moments: Moments, *, std_eps: float
) -> Advantage:
    """``group-std``, then (A − m)/√(v + 1e-8), ddof 1, over all tokens: ``--normalize-advantages``.

    Args:
        rewards, groups, std_eps: of ``group-std``.
        moments: of its advantages over the tokens of the batch.
    """
    return _whitened(_scores(rewards, groups, responses, std_eps=std_eps), responses, moments)


def distilled_normalised(
    rewards: F64,
    groups: Groups,
    log_probs_old: F64,
    log_probs_ref: F64,
    responses: Segments,
    moments: Moments,
    *,
    std_eps: float,
    opd_kl_coef: float,
) -> Advantage:
    """``slime/opd``, then whitened over all tokens as ``slime/normalised``."""
    how = {"std_eps": std_eps, "opd_kl_coef": opd_kl_coef}
    made = distilled(rewards, groups, log_probs_old, log_probs_ref, responses, **how)
    return _whitened(made, responses, moments)


def _scores(rewards: F64, groups: Groups, responses: Segments, *, std_eps: float) -> F64:
    del responses  # the measure over tokens reads them
    return group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)


def _whitened(advantage: Advantage, responses: Segments, moments: Moments) -> Advantage:
    variance = moments.squares / np.maximum(moments.count - 1.0, 1.0)
    return scaled(advantage, responses, moments, np.sqrt(variance + 1e-8))


def one_group(rewards: F64, moments: Moments, *, std_eps: float) -> F64:
    """A = (r − r̄_batch) / (σ_batch(r) + eps), ddof 1: the whole batch as one group.

    slime reshapes the rewards into groups only where they are as many as prompts times
    n_samples_per_prompt; where some responses are missing, all of them are one group.

    Args:
        rewards: [R] one per response.
        moments: of the rewards over the batch, one element per response.
        std_eps: added to σ; slime: 1e-6.
    """
    return advantages_scaled(rewards - moments.mean, moments, 1, std_eps)


def _rewards(rewards: F64) -> Sample:
    return Sample(rewards, np.ones_like(rewards))


_EPS = {"std_eps": 1e-6}
_OPD = {**_EPS, "opd_kl_coef": 1.0}

CHOICES = {
    "slime/normalised": Choice(normalised, _EPS, over_tokens(_scores)),
    "slime/opd": Choice(distilled, _OPD),
    "slime/opd-normalised": Choice(distilled_normalised, _OPD, over_tokens(distilled)),
    "slime/one-group": Choice(one_group, _EPS, _rewards),
    "slime/reinforce_plus_plus_baseline": Choice(slime_baseline, measure=over_tokens(own_penalty)),
}
