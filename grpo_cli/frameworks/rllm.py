"""rLLM: its own advantages, and verl's loss with the defaults of verl's configuration.

A step of a trajectory is a row.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.verl.advantage import grpo as verl_grpo
from grpo_cli.frameworks.verl.rows import VANILLA
from grpo_cli.objective.advantage.turns import once_per_trajectory, turn_rewards_less_kl
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.arithmetic.turns import TurnOrder
from grpo_cli.objective.choice import choice
from grpo_cli.objective.results import PerToken
from grpo_cli.objective.row import executed, use

_EPS = 1e-6


def _grpo(rewards: F64, groups: Groups) -> F64:
    offsets = groups.offsets(rewards)
    sizes = groups.sizes
    sigma = np.sqrt(groups.sum(np.square(offsets)) / np.maximum(sizes, 1))
    sigma, alone = np.where(sizes == 1, 1.0, sigma)[groups.index], sizes[groups.index] == 1
    return np.where(alone, rewards, offsets) / (sigma + _EPS)


choice("advantage", "rllm/grpo")(
    once_per_trajectory(
        _grpo,
        """A = (r − μ)/(σ + 1e-6) over the group's trajectories, σ with ddof 0; a single one: r.

    All steps of a trajectory share A (``stepwise_advantage.mode`` broadcast).

    References:
        rLLM 9beb6e0, ``calculate_grpo_advantages_per_group``. verl's σ has ddof 1.
    """,
    )
)


@choice("advantage", "rllm/per_step")
def per_step(
    turn_scores: F64, token_penalty: F64, turn_order: TurnOrder, groups: Groups
) -> PerToken:
    """``verl/grpo`` of step rewards: the k-th steps of a group are compared with each other.

    A step that no other trajectory reaches keeps its raw reward.

    References:
        rLLM 0.2.1, ``stepwise_advantage.mode`` per_step.
    """
    rewards = turn_rewards_less_kl(turn_scores, token_penalty, turn_order.turns)
    peers = turn_order.peers(groups, by_number=True)
    return PerToken(turn_order.turns.spread(verl_grpo(rewards, peers)))


ROWS = {
    "rllm/grpo": executed(
        VANILLA, advantage=use("rllm/grpo"), version="9beb6e0 (2026-08-15)"
    ).named(
        "rLLM's GRPO, broadcast from trajectories to steps",
        "σ has ddof 0; in verl's grpo, in SkyRL and in verl's agent loops it has ddof 1. The loss "
        "is a mean over rows, one per step, so long trajectories have more weight.",
        paper="",
    ),
    "rllm/per_step": executed(
        VANILLA, advantage=use("rllm/per_step"), version="960d573 (2025-12-11)", until="rllm 0.2.1"
    ).named(
        "rLLM's GRPO by step (stepwise_advantage.mode per_step)",
        "Needs a reward per step. The k-th steps of a group are compared with each other, "
        "although they started in different states. A step that no other trajectory reaches keeps "
        "its raw reward. Later releases broadcast the trajectory's advantage (rllm/grpo).",
        paper="",
    ),
}


FRAMEWORK = Framework(name="rllm", rows=ROWS, accumulation="sum")
