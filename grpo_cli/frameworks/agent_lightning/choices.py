"""agent-lightning's advantage, which counts a rollout once, and its denominator."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice, table
from grpo_cli.objective.results import Weights, per_token

table("advantage", "agent-lightning").aliases["agent-lightning/rollout_level"] = (
    "verl/grpo_multi_trajectories"
)


@choice("aggregate", "agent-lightning/per_rollout_mean")
def per_rollout_mean(lengths: I64, trajectories: Groups) -> Weights:
    """Sum over rollouts of their token means, over the rows: w = 1 / (rows · the rollout's tokens).

    A rollout is a trajectory, and a row is a response. A trajectory with one row per turn
    therefore makes the loss smaller.

    Args:
        lengths: [R] tokens of each response.
        trajectories: which responses are of one rollout.

    References:
        agent-lightning 1.0.0, ``normalize_advantages_by_rollout``. ``trajectory-mean`` divides by
        the rollouts.
    """
    tokens = trajectories.count_tokens(lengths)
    rows = np.ones(len(lengths))
    return Weights(per_token(tokens), rows, 1.0, "responses, each by its trajectory's tokens")
