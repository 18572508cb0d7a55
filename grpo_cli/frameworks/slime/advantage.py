"""slime's REINFORCE++-baseline, and its group norm where the groups' sizes differ."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.batch import scaled as advantages_scaled
from grpo_cli.objective.advantage.kl_in_reward import (
    Advantage,
    over_tokens,
    own_penalty,
    scaled,
)
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


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


def one_group(rewards: F64, moments: Moments, *, std_eps: float) -> F64:
    """A = (r − r̄_batch) / (σ_batch(r) + eps), ddof 1: the whole batch as one group.

    slime reshapes the rewards into groups only where they are as many as prompts times
    n_samples_per_prompt; where some responses are missing, all of them are one group.

    Args:
        rewards: [R] one per response.
        moments: of the rewards over the batch, one element per response.
        std_eps: added to σ; slime: 1e-6.
    """
    return advantages_scaled(rewards - moments.mean, moments, 1, std_eps)


def _rewards(rewards: F64) -> Sample:
    return Sample(rewards, np.ones_like(rewards))


CHOICES = {
    "slime/one-group": Choice(one_group, {"std_eps": 1e-6}, _rewards),
    "slime/reinforce_plus_plus_baseline": Choice(slime_baseline, measure=over_tokens(own_penalty)),
}
