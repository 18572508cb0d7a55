"""Rewards-to-go: group advantages from which a KL in the reward is taken off token by token.

OpenRLHF, AReaL and REINFORCE++ put a response's score on its last token, take β·k off every token,
and let each token's advantage be the sum over the tokens to come; slime's and NeMo-RL's
REINFORCE++-baseline takes off each token's own β·k only. Without a KL in the reward the advantage
is one per response.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.baseline import leave_one_out
from grpo_cli.objective.advantage.group import group_mean, group_std
from grpo_cli.objective.advantage.result import Moments, PerToken, Sample
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.arithmetic.suffix_sums import suffix_sums
from grpo_cli.objective.choice import Choice, positional

Advantage = F64 | PerToken


def group_norm(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    std_eps: float,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's GRPO: clip((r − r̄)/(σ + eps), ±reward_clip), less the KL of the tokens to come.

    Args:
        task_rewards: [R] r, without the KL.
        groups: which responses answer the same prompt; σ with ddof 1.
        token_penalty: [N] β·k of each token.
        responses: cuts the tokens into responses.
        std_eps: added to σ.
        reward_clip: bound on the score after it is normalised; AReaL clips the reward before.
    """
    scores = group_std(task_rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    return returns(scores, token_penalty, responses, reward_clip)


def dr_grpo(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's dr_grpo: clip(r − r̄, ±reward_clip), less the KL of the tokens to come."""
    return returns(group_mean(task_rewards, groups), token_penalty, responses, reward_clip)


def rloo(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's rloo: clip(r − mean of the others), less the KL of the tokens to come."""
    return returns(leave_one_out(task_rewards, groups), token_penalty, responses, reward_clip)


def reinforce_baseline(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's REINFORCE++-baseline: its dr_grpo, whitened over the tokens of the batch.

    Whitening is (A − m)/√max(v, 1e-8), v with ddof 0.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262).
    """
    advantage = dr_grpo(task_rewards, groups, token_penalty, responses, reward_clip=reward_clip)
    return scaled(advantage, responses, moments, _floored(moments))


def slime_baseline(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
) -> Advantage:
    """REINFORCE++-baseline of slime: r − r̄ − β·kₜ, whitened as (A − m)/√(v + 1e-8), ddof 1."""
    variance = moments.squares / np.maximum(moments.count - 1.0, 1.0)
    advantage = _own_penalty(task_rewards, groups, token_penalty, responses)
    return scaled(advantage, responses, moments, np.sqrt(variance + 1e-8))


def nemo_baseline(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
) -> Advantage:
    """NeMo-RL's REINFORCE++: r − r̄ − β·kₜ, whitened as (A − m)/√max(v, 1e-8), ddof 0."""
    advantage = _own_penalty(task_rewards, groups, token_penalty, responses)
    return scaled(advantage, responses, moments, _floored(moments))


def _own_penalty(
    task_rewards: F64, groups: Groups, token_penalty: F64, responses: Segments
) -> Advantage:
    scores = group_mean(task_rewards, groups)
    if not token_penalty.any():
        return scores
    return PerToken(responses.spread(scores) - token_penalty)


def returns(scores: F64, token_penalty: F64, responses: Segments, clip: float | None) -> Advantage:
    """The score of each response, less the penalty of each token and of those after it."""
    if clip is not None:
        scores = np.clip(scores, -clip, clip)
    if not token_penalty.any():
        return scores
    to_come = suffix_sums(token_penalty, responses, 1.0)
    return PerToken(responses.spread(scores) - to_come)


def over_tokens(advantage: Callable[..., Advantage]) -> Callable[..., Sample]:
    """The measure that has every token's advantage, before it is scaled, in the sample."""
    place = positional(advantage).index("responses")

    @wraps(advantage)
    def measured(*columns: Any, **values: Any) -> Sample:
        responses, found = columns[place], advantage(*columns, **values)
        if isinstance(found, PerToken):
            return Sample(found.values, np.ones(responses.total), per_token=True)
        return Sample(found, responses.lengths.astype(np.float64))

    return measured


def scaled(advantage: Advantage, responses: Segments, moments: Moments, scale: F64) -> Advantage:
    """(A − m) / scale; ``scale`` [R] is of the batch that each response belongs to."""
    if isinstance(advantage, PerToken):
        centre, scale = responses.spread(moments.mean), responses.spread(scale)
        return PerToken((advantage.values - centre) / scale)
    return (advantage - moments.mean) / scale


def _floored(moments: Moments) -> F64:
    return np.sqrt(np.maximum(moments.squares / np.maximum(moments.count, 1.0), 1e-8))


_CLIP = {"reward_clip": 10.0}

CHOICES = {
    "openrlhf/group_norm": Choice(group_norm, {"std_eps": 1e-9, **_CLIP}),
    "openrlhf/dr_grpo": Choice(dr_grpo, _CLIP),
    "openrlhf/rloo": Choice(rloo, _CLIP),
    "openrlhf/reinforce_baseline": Choice(reinforce_baseline, _CLIP, over_tokens(dr_grpo)),
    "slime/reinforce_plus_plus_baseline": Choice(slime_baseline, measure=over_tokens(_own_penalty)),
    "nemo-rl/reinforce_plus_plus": Choice(nemo_baseline, measure=over_tokens(_own_penalty)),
}
ALIASES = {"group_norm": "openrlhf/group_norm"}
