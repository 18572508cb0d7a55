"""Importance-weighted KL estimates whose clamp acts on the product, as NeMo-RL does.

An estimate k(d), d = log π_θ − log π_ref, is an expectation under the policy that sampled; weighted
with w = π_θ/π it is one under π_θ, and has the score function in its gradient:
∂(w·k)/∂log π_θ = w·(k + k′).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, k1, k2, k3
from grpo_cli.objective.results import Kl


def on_policy(estimator: Estimator) -> Callable[..., Kl]:
    """The estimate with the weight π_θ/sg[π_θ]: its own value, and slope k + k′."""

    def penalty(
        log_ratio_ref: F64,
        *,
        beta: float,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> Kl:
        del beta  # the pipeline multiplies by it
        ones = np.ones_like(log_ratio_ref)
        return _product(estimator, log_ratio_ref, ones, kl_input_clamp, kl_output_clamp)

    penalty.__doc__ = f"""NeMo-RL's {estimator.__name__}, weighted with π_θ/sg[π_θ]: slope k + k′.

    The clamp on d also holds back the score function's part; the one on k cuts both.

    References:
        Tang and Munos, 2025 (arXiv 2506.09477), on the gradient.
    """
    return penalty


def from_rollout(estimator: Estimator) -> Callable[..., Kl]:
    """The estimate with the weight π_θ/π_rollout."""

    def penalty(
        log_ratio_ref: F64,
        log_probs_new: F64,
        log_probs_rollout: F64,
        *,
        beta: float,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> Kl:
        del beta
        weight = np.exp(log_probs_new - log_probs_rollout)
        weight = np.where(np.isfinite(weight), weight, 0.0)
        return _product(estimator, log_ratio_ref, weight, kl_input_clamp, kl_output_clamp)

    penalty.__doc__ = f"""NeMo-RL's {estimator.__name__}, weighted with π_θ/π_rollout.

    Its ``use_on_policy_kl_approximation``. slime and TRL weigh with π_θ/π_old instead.
    """
    return penalty


def _product(
    estimator: Estimator, difference: F64, weight: F64, inside: float | None, outside: float | None
) -> Kl:
    within = np.ones(len(difference), np.bool_)
    if inside is not None:
        within = np.abs(difference) <= inside
        difference = np.clip(difference, -inside, inside)
    estimate, slope = estimator(difference)
    value = weight * estimate
    if outside is not None:
        within &= np.abs(value) <= outside
        value = np.clip(value, -outside, outside)
    return Kl(value, np.where(within, weight * (estimate + slope), 0.0), None)


_NEMO = {"kl_input_clamp": 20.0, "kl_output_clamp": 10.0}

CHOICES = {
    "nemo-rl/k1": Choice(
        on_policy(k1), _NEMO, stops_gradient="the weight π_θ/sg[π_θ] is 1 and has a slope"
    ),
    "nemo-rl/k2": Choice(
        on_policy(k2), _NEMO, stops_gradient="the weight π_θ/sg[π_θ] is 1 and has a slope"
    ),
    "nemo-rl/k3": Choice(
        on_policy(k3), _NEMO, stops_gradient="the weight π_θ/sg[π_θ] is 1 and has a slope"
    ),
    "nemo-rl/k1-rollout": Choice(from_rollout(k1), _NEMO),
    "nemo-rl/k2-rollout": Choice(from_rollout(k2), _NEMO),
    "nemo-rl/k3-rollout": Choice(from_rollout(k3), _NEMO),
}
