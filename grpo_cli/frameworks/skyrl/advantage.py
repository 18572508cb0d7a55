"""SkyRL's advantage estimators, where they are not verl's."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice


def maxrl(rewards: F64, groups: Groups) -> F64:
    """A = (s − μ) / (μ + 1e-6) over the group; A = s for a group of one.

    A negative mean turns the sign round: it is meant for rewards of 0 and 1.

    References:
        Tajwar et al., MaxRL, 2026 (arXiv 2602.02710).
    """
    means = groups.sum(rewards) / np.maximum(groups.sizes, 1)
    alone = groups.sizes[groups.index] == 1
    return np.where(alone, rewards, groups.offsets(rewards) / (means[groups.index] + 1e-6))


CHOICES = {"skyrl/maxrl": Choice(maxrl)}
ALIASES = {
    "skyrl/grpo": "verl/grpo",
    "skyrl/grpo_nostd": "verl/grpo_nostd",
    "skyrl/rloo": "leave-one-out",
}
