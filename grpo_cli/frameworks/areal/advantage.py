"""AReaL's GRPO advantage: normalised in the group, then over the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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

    Both normalisations are (x − m)/(σ + eps), m and σ the mean and the standard deviation of x
    with ddof 1; the second has each token of the batch as one element. A KL in the reward is summed
    over the tokens to come, between the two.

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
    scores = _scores(task_rewards, groups, reward_bias, reward_scaling, reward_clip, std_eps)
    return _whitened(returns(scores, token_penalty, responses, None), responses, moments, std_eps)


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
    scores = _scores(task_rewards, groups, reward_bias, reward_scaling, reward_clip, std_eps)
    return returns(scores, token_penalty, responses, None)


def on_last_token(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
    last_masked: NDArray[np.bool_] | None = None,
    *,
    reward_bias: float,
    reward_scaling: float,
    reward_clip: float,
    std_eps: float,
) -> Advantage:
    """``areal/grpo``, but a response whose last token as written is masked has no score.

    AReaL puts the score on the last token that is no padding, and its recursion passes over masked
    tokens: where that token is one of them the score is 0, before the second normalisation. For
    records without padding, whose masks at the end are of the response's own tokens.

    Args:
        task_rewards, token_penalty: [R] r without the KL; [N] β·k of each token.
        groups, responses: which responses answer the same prompt; cut the tokens.
        moments: of the scores that are left, less the KL, over tokens.
        last_masked: [R] the responses whose last token is masked; None: none.
        reward_bias, reward_scaling, reward_clip, std_eps: as ``areal/grpo`` takes them.

    References:
        AReaL cbff54d, ``PPOActor._compute_advantages``.
    """
    scores = _scores(task_rewards, groups, reward_bias, reward_scaling, reward_clip, std_eps)
    left = returns(_kept(scores, last_masked), token_penalty, responses, None)
    return _whitened(left, responses, moments, std_eps)


def _left(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    last_masked: NDArray[np.bool_] | None = None,
    *,
    reward_bias: float,
    reward_scaling: float,
    reward_clip: float,
    std_eps: float,
) -> Advantage:
    scores = _scores(task_rewards, groups, reward_bias, reward_scaling, reward_clip, std_eps)
    return returns(_kept(scores, last_masked), token_penalty, responses, None)


def _scores(
    task_rewards: F64, groups: Groups, bias: float, scaling: float, clip: float, std_eps: float
) -> F64:
    mapped = np.clip((task_rewards + bias) * scaling, -clip, clip)
    return group_std(mapped, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)


def _kept(scores: F64, last_masked: NDArray[np.bool_] | None) -> F64:
    return scores if last_masked is None else np.where(last_masked, 0.0, scores)


def _whitened(
    advantage: Advantage, responses: Segments, moments: Moments, std_eps: float
) -> Advantage:
    sigma = np.where(moments.count > 1.0, moments.std(1), 1.0)
    return scaled(advantage, responses, moments, sigma + std_eps)


_USUAL = {"reward_bias": -0.5, "reward_scaling": 10.0, "reward_clip": 20.0, "std_eps": 1e-5}

CHOICES = {
    "areal/grpo": Choice(group_then_batch, _USUAL, over_tokens(_group_norm)),
    "areal/on-last-token": Choice(on_last_token, _USUAL, over_tokens(_left)),
}
