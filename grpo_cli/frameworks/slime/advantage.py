"""slime's REINFORCE++-baseline."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.kl_in_reward import (
    Advantage,
    over_tokens,
    own_penalty,
    scaled,
)
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments


def slime_baseline(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
) -> Advantage:
    """REINFORCE++-baseline of slime: r − r̄ − β·kₜ, whitened as (A − m)/√(v + 1e-8), ddof 1."""
    variance = moments.squares / np.maximum(moments.count - 1.0, 1.0)
    advantage = own_penalty(task_rewards, groups, token_penalty, responses)
    return scaled(advantage, responses, moments, np.sqrt(variance + 1e-8))


CHOICES = {
    "slime/reinforce_plus_plus_baseline": Choice(slime_baseline, measure=over_tokens(own_penalty)),
}
