"""agent-lightning 1.0.0: verl 0.8's loss on rows that are turns, or runs of turns, of one rollout.

The advantages of a step are divided by its rows before verl cuts it into micro-batches, whose
losses are added up: agentlightning/verl/trainer.py.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.verl.rows import OWN_AGGREGATE, VANILLA
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice, table
from grpo_cli.objective.results import Weights, per_token
from grpo_cli.objective.row import executed, use, vary

table("advantage", "agent-lightning").aliases["agent-lightning/rollout_level"] = (
    "verl/grpo_multi_trajectories"
)


@choice("aggregate", "agent-lightning/per_rollout_mean")
def per_rollout_mean(lengths: I64, trajectories: Groups) -> Weights:
    """Sum over rollouts of their token means, over the rows: w = 1 / (rows · the rollout's tokens).

    A rollout is a trajectory, and a row is a response. A trajectory with one row per turn
    therefore makes the loss smaller.

    References:
        agent-lightning 1.0.0, ``normalize_advantages_by_rollout``. ``trajectory-mean`` divides by
        the rollouts.
    """
    tokens = trajectories.count_tokens(lengths)
    rows = np.ones(len(lengths))
    return Weights(per_token(tokens), rows, 1.0, "responses, each by its trajectory's tokens")


_VERSION = "c632d8d (2026-08-22)"

ROWS = {
    "agent-lightning/per_rollout_mean": executed(
        OWN_AGGREGATE,
        advantage=use("verl/grpo_multi_trajectories"),
        aggregate=use("agent-lightning/per_rollout_mean"),
        version=_VERSION,
    ).named(
        "agent-lightning's default: advantages and loss by rollout",
        "Each rollout counts once in the group, and all rollouts have equal weight in the loss. "
        "The sum is divided by the number of rows, so a rollout split into more rows makes the "
        "step smaller. To divide by the rollouts, use --aggregate trajectory-mean.",
        paper="",
        aliases=("agent-lightning/default",),
    ),
    "agent-lightning/transition": vary(VANILLA, version=_VERSION).named(
        "agent-lightning without rollout-level advantages and loss (its default before 1.0)",
        "This is verl's vanilla. Every turn is a sample of the group, so long rollouts have more "
        "weight in the group's mean and std and in the loss.",
        paper="",
    ),
}


FRAMEWORK = Framework(name="agent-lightning", rows=ROWS, accumulation="whole step")
