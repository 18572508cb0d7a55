"""OpenRLHF's KL estimates with the gradient of the KL itself (``kl.unbiased_gradient``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, k1, k2, k3
from grpo_cli.objective.results import Kl

_CLAMP = 10.0  # on the estimate, and on the weight of its gradient


def unbiased(estimator: Estimator) -> Callable[..., Kl]:
    """The clamped estimate with the slope min(π_θ/π_old, 10)·d."""

    def penalty(log_ratio_ref: F64, token_log_ratio: F64, *, beta: float) -> Kl:
        del beta  # the pipeline multiplies by it
        value = np.clip(estimator(log_ratio_ref)[0], -_CLAMP, _CLAMP)
        weight = np.minimum(np.exp(token_log_ratio), _CLAMP)
        return Kl(value, weight * log_ratio_ref, None)

    penalty.__doc__ = f"""The value of {estimator.__name__} with the slope min(ρₜ, 10)·d.

    d = log π_θ − log π_ref and ρₜ = π_θ/π_old, both of the token: the expectation of the slope
    under π_old is the gradient of the reverse KL. The value is clamped to ±10, the slope is not.

    Args:
        log_ratio_ref: [N] d, nats.
        token_log_ratio: [N] log ρₜ, nats, whatever the ratio stage is.
        beta: the coefficient.

    References:
        OpenRLHF 0.11.2, ``kl.unbiased_gradient``; Tang and Munos, 2025 (arXiv 2506.09477).
    """
    return penalty


CHOICES = {
    f"openrlhf/{estimator.__name__}+": Choice(
        unbiased(estimator),
        stops_gradient="the estimate's own slope: the penalty's is min(ρₜ, 10)·d",
    )
    for estimator in (k1, k2, k3)
}
