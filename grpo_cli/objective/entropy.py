"""The entropy bonus that some frameworks add to J."""

from __future__ import annotations

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice


def bonus(entropies: F64, *, entropy_coef: float) -> F64:
    """J gains entropy_coef · Σₜ w·Hₜ, H being the entropy of π_θ at each token, nats.

    The entropy is not a function of the log-prob of the token taken, so the bonus has no part in
    the gradient that is shown.

    References:
        Williams and Peng, 1991; He et al., Skywork-OR1, 2025 (arXiv 2505.22312).
    """
    del entropy_coef  # the pipeline multiplies by it
    return entropies


BONUS = Choice(bonus)
