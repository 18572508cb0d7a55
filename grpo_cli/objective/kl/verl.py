"""verl's KL penalties, and its ``+``: the value of one estimator with the gradient of k2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, absolute, in_loss, k1, k2, k3
from grpo_cli.objective.kl.result import Kl
from grpo_cli.objective.kl.reward import in_reward


def straight_through(estimator: Estimator) -> Callable[..., Kl]:
    """The estimator's value with the slope d of k2, whose gradient is that of the reverse KL."""

    def penalty(
        log_ratio_ref: F64,
        *,
        beta: float,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> Kl:
        del beta  # the pipeline multiplies by it
        inside, outside = kl_input_clamp or np.inf, kl_output_clamp or np.inf
        value, _ = estimator(np.clip(log_ratio_ref, -inside, inside))
        return Kl(np.clip(value, -outside, outside), log_ratio_ref, None)

    penalty.__doc__ = f"""verl's {estimator.__name__}+: that value, with the slope d of k2.

    The clamps bound the value alone.

    References:
        Tang and Munos, 2025 (arXiv 2506.09477), on why the gradient of k1 and k3 is not the KL's.
    """
    return penalty


_PLAIN = {"kl_weight": "none", "kl_input_clamp": None, "kl_output_clamp": None}
_LOW_VAR = {"kl_weight": "none", "kl_input_clamp": 20.0, "kl_output_clamp": 10.0}
_FREE = {"kl_input_clamp": None, "kl_output_clamp": None}
_BOUND = {"kl_input_clamp": 20.0, "kl_output_clamp": 10.0}

CHOICES = {
    "verl/kl": Choice(in_loss(k1), _PLAIN),
    "verl/abs": Choice(in_loss(absolute), _PLAIN),
    "verl/mse": Choice(in_loss(k2), _PLAIN),
    "verl/low_var_kl": Choice(in_loss(k3), _LOW_VAR),
    "verl/kl+": Choice(straight_through(k1), _FREE),
    "verl/abs+": Choice(straight_through(absolute), _FREE),
    "verl/mse+": Choice(straight_through(k2), _FREE),
    "verl/low_var_kl+": Choice(straight_through(k3), _BOUND),
    "verl/kl-in-reward": Choice(in_reward(k1), _FREE),
    "verl/abs-in-reward": Choice(in_reward(absolute), _FREE),
    "verl/mse-in-reward": Choice(in_reward(k2), _FREE),
    "verl/low_var_kl-in-reward": Choice(in_reward(k3), _BOUND),
}
ALIASES = {
    "verl/k1": "verl/kl",
    "verl/k2": "verl/mse",
    "verl/k3": "verl/low_var_kl",
    "verl/k1+": "verl/kl+",
    "verl/k2+": "verl/mse+",
    "verl/k3+": "verl/low_var_kl+",
}
