"""NeMo-RL's REINFORCE++."""

from __future__ import annotations

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.kl_in_reward import (
    Advantage,
    floored_std,
    over_tokens,
    own_penalty,
    scaled,
)
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments


def nemo_baseline(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
) -> Advantage:
    """NeMo-RL's REINFORCE++: r − r̄ − β·kₜ, whitened as (A − m)/√max(v, 1e-8), ddof 0."""
    advantage = own_penalty(task_rewards, groups, token_penalty, responses)
    return scaled(advantage, responses, moments, floored_std(moments))


CHOICES = {
    "nemo-rl/reinforce_plus_plus": Choice(nemo_baseline, measure=over_tokens(own_penalty)),
}
