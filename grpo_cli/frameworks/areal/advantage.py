"""AReaL's GRPO advantage: normalised in the group, then over the batch."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.advantage.kl_in_reward import Advantage, over_tokens, returns, scaled
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments


def group_then_batch(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
    *,
    reward_bias: float,
    reward_scaling: float,
    reward_clip: float,
    std_eps: float,
) -> Advantage:
    """AReaL's GRPO: clip((r + bias)·scaling), group-normalised, then normalised over all tokens.

    Both normalisations are (x − m)/(σ + eps) with ddof 1; the second has each token of the batch
    as one element. A KL in the reward is summed over the tokens to come, between the two.

    Args:
        task_rewards, token_penalty: [R] r without the KL; [N] β·k of each token.
        groups, responses: which responses answer the same prompt; cut the tokens.
        moments: of the group-normalised advantages, over tokens.
        reward_bias, reward_scaling: the affine map that rewards go through first.
        reward_clip: bound on the reward before it is normalised; OpenRLHF clips after.
        std_eps: added to both σ.

    References:
        Fu et al., AReaL, 2025 (arXiv 2505.24298); its examples/math/gsm8k_grpo.yaml.
    """
    advantage = _group_norm(
        task_rewards,
        groups,
        token_penalty,
        responses,
        reward_bias=reward_bias,
        reward_scaling=reward_scaling,
        reward_clip=reward_clip,
        std_eps=std_eps,
    )
    sigma = np.where(moments.count > 1.0, moments.std(1), 1.0)
    return scaled(advantage, responses, moments, sigma + std_eps)


def _group_norm(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    reward_bias: float,
    reward_scaling: float,
    reward_clip: float,
    std_eps: float,
) -> Advantage:
    mapped = np.clip((task_rewards + reward_bias) * reward_scaling, -reward_clip, reward_clip)
    scores = group_std(mapped, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    return returns(scores, token_penalty, responses, None)


_USUAL = {"reward_bias": -0.5, "reward_scaling": 10.0, "reward_clip": 20.0, "std_eps": 1e-5}

CHOICES = {"areal/grpo": Choice(group_then_batch, _USUAL, over_tokens(_group_norm))}
