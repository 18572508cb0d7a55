"""AReaL's KL in the reward, which its decoupled loss takes of the engine that sampled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.errors import InputError
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, k1, k2, k3
from grpo_cli.objective.kl.reward import in_reward


def of_rollout(estimator: Estimator) -> Callable[..., F64]:
    """β times the estimate with d = log π_rollout − log π_ref, [N]."""
    of_old = in_reward(estimator)

    def penalty(
        log_probs_ref: F64,
        log_probs_rollout: F64 | None = None,
        *,
        beta: float,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> F64:
        if log_probs_rollout is None:
            if beta:
                raise InputError(
                    "missing; AReaL's decoupled loss takes the KL of the engine that sampled; "
                    "--kl k1-in-reward takes it of the old policy, as without that loss",
                    path="log_probs_rollout",
                    record=0,
                )
            return np.zeros_like(log_probs_ref)
        penalties: F64 = of_old(
            log_probs_rollout,
            log_probs_ref,
            beta=beta,
            kl_input_clamp=kl_input_clamp,
            kl_output_clamp=kl_output_clamp,
        )
        return penalties

    penalty.__doc__ = f"""{estimator.__name__} of π_rollout against π_ref, taken off the reward.

    It is taken of d = log π_rollout − log π_ref.

    References:
        AReaL's use_decoupled_loss, whose ``logprobs`` stay the engine's. Without it they are the
        old policy's (``{estimator.__name__}-in-reward``).
    """
    return penalty


_CLAMPED = {"kl_input_clamp": None, "kl_output_clamp": 10.0}

CHOICES = {
    "areal/k1-in-reward": Choice(of_rollout(k1), _CLAMPED, in_reward=True),
    "areal/k2-in-reward": Choice(of_rollout(k2), _CLAMPED, in_reward=True),
    "areal/k3-in-reward": Choice(of_rollout(k3), _CLAMPED, in_reward=True),
}
