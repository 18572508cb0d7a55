"""The Tinker cookbook's advantage."""

from __future__ import annotations

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.kl_in_reward import Advantage, own_penalty
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice


def group_mean(
    task_rewards: F64, groups: Groups, token_penalty: F64, responses: Segments
) -> Advantage:
    """A = r − r̄ over the group, less each token's own penalty (``--kl tinker/centred``).

    Args:
        task_rewards: [R] r, without the KL.
        groups, responses: which responses answer the same prompt; cut the tokens.
        token_penalty: [N] what the KL takes off at each token.

    References:
        tinker-cookbook 0.6.1, ``compute_advantages`` and ``incorporate_kl_penalty``.
    """
    return own_penalty(task_rewards, groups, token_penalty, responses)


CHOICES = {"tinker/group-mean": Choice(group_mean)}
