"""The advantage of TRL's RLOOTrainer with normalize_advantages."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.advantage.baseline import leave_one_out
from grpo_cli.objective.advantage.batch import scaled
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


def normalised(
    rewards: F64, groups: Groups, moments: Moments, *, std_ddof: int, std_eps: float
) -> F64:
    """A = (x − x̄_batch) / (σ_batch(x) + eps), x being the ``leave-one-out`` advantage.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        moments: of x over the batch, one element per response.
        std_ddof: degrees of freedom taken off; TRL: 1.
        std_eps: added to σ; TRL: 1e-4.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262), as TRL's paper index runs it.
    """
    return scaled(leave_one_out(rewards, groups) - moments.mean, moments, std_ddof, std_eps)


def _sample(rewards: F64, groups: Groups) -> Sample:
    return Sample(leave_one_out(rewards, groups), np.ones_like(rewards))


CHOICES = {
    "trl/rloo-normalised": Choice(normalised, {"std_ddof": 1, "std_eps": 1e-4}, _sample),
}
