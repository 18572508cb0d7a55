"""Ratios that leave the trainer's old policy out.

Against the engine that sampled, one ratio w = π_θ/π_rollout plays the parts of both the update's
ratio and the correction.
"""

from __future__ import annotations

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.ratio.level import sequence, sequence_token, token
from grpo_cli.objective.results import Ratio


def rollout(log_probs_new: F64, log_probs_rollout: F64, *, log_ratio_clamp: float | None) -> Ratio:
    """Token level, against the sampling engine: wₜ = π_θ(oₜ) / π_rollout(oₜ).

    Args:
        log_probs_new: [N] log π_θ, nats.
        log_probs_rollout: [N] log-probs that the engine itself reported, nats.
        log_ratio_clamp: bound on |log w|; None: no bound.

    References:
        prime-rl, Tinker; slime's ``--use-rollout-logprobs``, verl's bypass mode.
    """
    return token(log_probs_new - log_probs_rollout, log_ratio_clamp=log_ratio_clamp)


def rollout_sequence(
    log_probs_new: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    log_ratio_clamp: float | None,
) -> Ratio:
    """Sequence level, against the sampling engine: the geometric mean of ``rollout``.

    References:
        OpenRLHF, GSPO with its importance-sampling correction switched on.
    """
    difference = log_probs_new - log_probs_rollout
    return sequence(difference, responses, log_ratio_clamp=log_ratio_clamp)


def rollout_sequence_token(
    log_probs_new: F64, log_probs_rollout: F64, responses: Segments
) -> Ratio:
    """GSPO-token against the sampling engine: the value of ``rollout-sequence``, own gradients.

    Each token's slope is that of its own log-prob, so that advantages may differ between tokens.

    Args:
        log_probs_new: [N] log π_θ, nats.
        log_probs_rollout: [N] log-probs that the engine itself reported, nats.
        responses: cuts the tokens into responses, over which the mean is taken.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), section on GSPO-token; Tinker's gspo.
    """
    difference = log_probs_new - log_probs_rollout
    return sequence_token(difference, responses, log_ratio_clamp=None)


def on_policy(log_probs_new: F64) -> Ratio:
    """π_θ/sg[π_θ]: ρ = 1 whatever the old policy was, with the gradient of the token level.

    References:
        NeMo-RL's ``force_on_policy_ratio``; what open-instruct and slime compute in their first
        update, where the old log-probs are those of the same forward pass.
    """
    return token(log_probs_new - log_probs_new, log_ratio_clamp=None)


CHOICES = {
    "on-policy": Choice(on_policy, stops_gradient="the old policy is the current one, held still"),
    "rollout": Choice(rollout, {"log_ratio_clamp": None}),
    "rollout-sequence": Choice(rollout_sequence, {"log_ratio_clamp": None}),
    "rollout-sequence-token": Choice(
        rollout_sequence_token,
        stops_gradient="the response's mean ratio is a constant but for the token's own part",
    ),
}
