"""Advantages that a teacher gives, token by token, in the place of rewards."""

from __future__ import annotations

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import PerToken


def ref_kl(log_ratio_ref: F64) -> PerToken:
    """On-policy distillation: A = sg[log π_ref − log π_θ], π_ref being the teacher.

    References:
        Lu et al., On-Policy Distillation, 2025; prime-rl's ``opd``. NeMo-RL has log π_old in the
        place of log π_θ, Tinker log π_rollout.
    """
    return PerToken(-log_ratio_ref)


CHOICES = {
    "prime-rl/ref_kl": Choice(ref_kl, stops_gradient="the distance to the teacher is a constant")
}
