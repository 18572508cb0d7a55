"""ms-swift's RLOO over a std, and RLSD's advantages that a teacher weighs."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.baseline import leave_one_out
from grpo_cli.objective.advantage.batch import scaled
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, PerToken, Sample


def rloo_group(rewards: F64, groups: Groups, *, std_eps: float) -> F64:
    """``leave-one-out`` over the group's σ(r) + eps: advantage_estimator rloo, scale_rewards group.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        std_eps: added to σ (ddof 1); ms-swift: 1e-4.
    """
    sizes = groups.sizes[groups.index]
    scores = group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    return scores * (sizes / np.maximum(sizes - 1, 1))


def rloo_batch(rewards: F64, groups: Groups, moments: Moments, *, std_eps: float) -> F64:
    """``leave-one-out`` over σ_batch(r) + eps: advantage_estimator rloo with scale_rewards batch.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        moments: of the rewards of the batch, one element per response.
        std_eps: added to σ (ddof 1); ms-swift: 1e-4.
    """
    return scaled(leave_one_out(rewards, groups), moments, 1, std_eps)


def rlsd(
    rewards: F64,
    groups: Groups,
    log_probs_old: F64,
    log_probs_ref: F64,
    responses: Segments,
    *,
    std_eps: float,
    rlsd_lambda: float,
    rlsd_clip_range: float,
    rlsd_negative_only: int,
) -> PerToken:
    """Aₜ = A·(1 − λ + λ·clip((π_ref/π_old)^sign(A), 1 − ε_w, 1 + ε_w)), A being ``group-std``.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        log_probs_old: [N]; log_probs_ref: [N] the teacher's, which saw the answer.
        responses: cuts the tokens into responses.
        std_eps: added to the group's σ (ddof 1); ms-swift: 1e-4.
        rlsd_lambda, rlsd_clip_range: λ, of this step; ε_w.
        rlsd_negative_only: 1: responses with A >= 0 keep their advantage.

    References:
        ms-swift 4.6.0, ``apply_rlsd_reweight`` (advantage_reweight rlsd), after RLSD's own code.
    """
    scores = group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    own = responses.spread(scores)
    weight = np.exp(np.sign(own) * (log_probs_ref - log_probs_old))
    bounded = np.clip(weight, 1.0 - rlsd_clip_range, 1.0 + rlsd_clip_range)
    factor = 1.0 - rlsd_lambda + rlsd_lambda * bounded
    return PerToken(np.where(own < 0, own * factor, own if rlsd_negative_only else own * factor))


def _rewards(rewards: F64) -> Sample:
    return Sample(rewards, np.ones_like(rewards))


_EPS = {"std_eps": 1e-4}

CHOICES = {
    "ms-swift/rloo-group": Choice(rloo_group, _EPS),
    "ms-swift/rloo-batch": Choice(rloo_batch, _EPS, _rewards),
    "ms-swift/rlsd": Choice(
        rlsd, {**_EPS, "rlsd_lambda": 0.5, "rlsd_clip_range": 0.2, "rlsd_negative_only": 0}
    ),
}
