"""OpenRLHF's advantages: scores on the last token, less the KL of the tokens to come."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.baseline import leave_one_out
from grpo_cli.objective.advantage.group import group_mean, group_std
from grpo_cli.objective.advantage.kl_in_reward import (
    Advantage,
    floored_std,
    over_tokens,
    returns,
    scaled,
)
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


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
    return scaled(advantage, responses, moments, floored_std(moments))


def flash_reinforce(
    task_rewards: F64,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's flash_reinforce: clip(r − mean of the batch), less the KL of the tokens to come.

    Args:
        task_rewards: [R] r, without the KL.
        token_penalty: [N] β·k of each token.
        responses: cuts the tokens into responses.
        moments: of r over the responses of the batch; groups play no part.
        reward_clip: bound on the centred score.

    References:
        OpenRLHF 0.11.2, for one response per prompt.
    """
    return returns(task_rewards - moments.mean, token_penalty, responses, reward_clip)


def _each_once(task_rewards: F64) -> Sample:
    return Sample(task_rewards, np.ones(len(task_rewards)))


_CLIP = {"reward_clip": 10.0}


CHOICES = {
    "openrlhf/group_norm": Choice(group_norm, {"std_eps": 1e-9, **_CLIP}),
    "openrlhf/dr_grpo": Choice(dr_grpo, _CLIP),
    "openrlhf/rloo": Choice(rloo, _CLIP),
    "openrlhf/reinforce_baseline": Choice(reinforce_baseline, _CLIP, over_tokens(dr_grpo)),
    "openrlhf/flash_reinforce": Choice(flash_reinforce, _CLIP, _each_once),
}
ALIASES = {"group_norm": "openrlhf/group_norm", "flash_reinforce": "openrlhf/flash_reinforce"}
