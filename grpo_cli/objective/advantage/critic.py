"""Advantages for which the record has more than rewards: a critic, or a greedy response."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.kl_in_reward import Advantage
from grpo_cli.objective.advantage.kl_in_reward import returns as to_come
from grpo_cli.objective.arithmetic.groups import suffix_sums
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import PerToken


def gae(
    task_rewards: F64,
    token_penalty: F64,
    values: F64,
    responses: Segments,
    *,
    gamma: float,
    gae_lambda: float,
) -> PerToken:
    """GAE: Aₜ = Σₛ≥ₜ (γλ)^(s−t)·δₛ, δₜ = rₜ + γ·V(t+1) − V(t), V being 0 after the last token.

    V the critic's value of a token, rₜ the reward where t is the last token, less its penalty.

    Args:
        task_rewards: [R] the reward, which stands on a response's last token.
        token_penalty: [N] what a KL in the reward takes off at each token.
        values: [N] V(t), the critic's value before the token.
        responses: cuts the tokens into responses; masked ones are passed over.
        gamma: discount per token.
        gae_lambda: λ.

    References:
        Schulman et al., High-Dimensional Continuous Control Using GAE, 2015 (arXiv 1506.02438).
    """
    filled = responses.lengths > 0
    last = (np.cumsum(responses.lengths) - 1)[filled]
    following = np.append(values[1:], 0.0)[: len(values)]
    following[last] = 0.0
    errors = gamma * following - values - token_penalty
    errors[last] += task_rewards[filled]
    return PerToken(suffix_sums(errors, responses, gamma * gae_lambda))


def remax(
    task_rewards: F64, reward_baselines: F64, token_penalty: F64, responses: Segments
) -> Advantage:
    """ReMax: A = r − b, b the reward of a greedy response, less the KL of the tokens to come.

    Args:
        task_rewards: [R] r, without the KL.
        reward_baselines: [R] b.
        token_penalty: [N] what a KL in the reward takes off at each token.
        responses: cuts the tokens into responses.

    References:
        Li et al., ReMax, 2023 (arXiv 2310.10505), as verl 0.9.1 has it.
    """
    return to_come(task_rewards - reward_baselines, token_penalty, responses, None)


CHOICES = {"gae": Choice(gae, {"gamma": 1.0, "gae_lambda": 0.95}), "remax": Choice(remax)}
