"""NeMo-RL's REINFORCE++, with and without a baseline."""

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
from grpo_cli.objective.results import Moments, PerToken


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


def nemo_raw(
    task_rewards: F64, token_penalty: F64, responses: Segments, moments: Moments
) -> Advantage:
    """``nemo-rl/reinforce_plus_plus`` without the baseline: r − β·kₜ, whitened over all tokens."""
    advantage = _own_penalty(task_rewards, token_penalty, responses)
    return scaled(advantage, responses, moments, floored_std(moments))


def _own_penalty(task_rewards: F64, token_penalty: F64, responses: Segments) -> Advantage:
    if not token_penalty.any():
        return task_rewards
    return PerToken(responses.spread(task_rewards) - token_penalty)


CHOICES = {
    "nemo-rl/reinforce_plus_plus-raw": Choice(nemo_raw, measure=over_tokens(_own_penalty)),
    "nemo-rl/reinforce_plus_plus": Choice(nemo_baseline, measure=over_tokens(own_penalty)),
}
