"""The penalty on the distance to the engine that sampled, in place of a reference model."""

from __future__ import annotations

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Kl


def square_rollout(log_probs_new: F64, log_probs_rollout: F64, *, beta: float) -> Kl:
    """d² with d = log π_θ − log π_rollout, without the ½ of k2; slope 2d.

    References:
        Kimi-K2.5, 2026 (arXiv 2602.02276), as prime-rl adds it to every loss.
    """
    del beta  # the pipeline multiplies by it
    difference = log_probs_new - log_probs_rollout
    return Kl(difference * difference, 2.0 * difference, None)


CHOICES = {"square-rollout": Choice(square_rollout)}
