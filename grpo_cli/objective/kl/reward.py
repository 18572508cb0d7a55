"""The KL estimators as penalties on the reward, measured when the responses are scored.

Nothing differentiates them: the policy under the estimate is π_old, d = log π_old − log π_ref. What
is taken off, β·k per token, is the column ``token_penalty``; how it reaches the advantage (summed
over the response, over the tokens to come, or token by token) is the advantage's business.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, k1, k2, k3


def in_reward(estimator: Estimator) -> Callable[..., F64]:
    """β times the estimate, [N], which the reward stage takes off."""

    def penalty(
        log_probs_old: F64,
        log_probs_ref: F64,
        *,
        beta: float,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> F64:
        difference = log_probs_old - log_probs_ref
        if kl_input_clamp is not None:
            difference = np.clip(difference, -kl_input_clamp, kl_input_clamp)
        estimate = estimator(difference)[0]
        if kl_output_clamp is not None:
            estimate = np.clip(estimate, -kl_output_clamp, kl_output_clamp)
        return beta * estimate

    penalty.__doc__ = f"""{estimator.__name__} of π_old against the reference, taken off the reward.

    It is taken of d = log π_old − log π_ref: nothing differentiates it.

    References:
        Ouyang et al., InstructGPT, 2022 (arXiv 2203.02155); OpenRLHF, slime, NeMo-RL and AReaL
        offer it, with clamps on k (OpenRLHF, AReaL: 10), on d and k (NeMo-RL: 20 and 10), or none.
    """
    return penalty


_USUAL = {"kl_input_clamp": None, "kl_output_clamp": None}

CHOICES = {
    "k1-in-reward": Choice(in_reward(k1), _USUAL, in_reward=True),
    "k2-in-reward": Choice(in_reward(k2), _USUAL, in_reward=True),
    "k3-in-reward": Choice(in_reward(k3), _USUAL, in_reward=True),
}
