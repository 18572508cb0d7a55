"""Straight-through estimators: the value of one estimator, the gradient of k2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, absolute, k1, k3
from grpo_cli.objective.kl.reward import in_reward
from grpo_cli.objective.results import Kl


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

    penalty.__doc__ = f"""The value of {estimator.__name__} with the slope d of k2.

    The clamps bound the value alone.

    References:
        Tang and Munos, 2025 (arXiv 2506.09477), on why the gradient of k1 and k3 is not the KL's.
        verl's ``+``.
    """
    return penalty


_FREE = {"kl_input_clamp": None, "kl_output_clamp": None}

CHOICES = {
    "k1+": Choice(
        straight_through(k1), _FREE, stops_gradient="the value of one estimator has the slope of k2"
    ),
    "abs+": Choice(
        straight_through(absolute),
        _FREE,
        stops_gradient="the value of one estimator has the slope of k2",
    ),
    "k3+": Choice(
        straight_through(k3), _FREE, stops_gradient="the value of one estimator has the slope of k2"
    ),
    "abs-in-reward": Choice(in_reward(absolute), _FREE, in_reward=True),
}
ALIASES = {"kl+": "k1+", "low_var_kl+": "k3+"}
