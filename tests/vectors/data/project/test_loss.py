"""A project's own loss, and the fixture that has the vectors run on it."""

import numpy as np
import pytest

from grpo_cli.vectors import Claims, Loss


def policy_loss(new, old, advantages, mask, low, high):
    """PPO's clip under a token mean, in numpy; the gradient by hand."""
    a, keep = advantages[:, None], mask > 0
    ratio = np.exp(np.where(keep, new - old, 0.0))
    free, bounded = ratio * a, np.clip(ratio, 1 - low, 1 + high) * a
    tokens = max(keep.sum(), 1)
    slope = np.where(keep & (free <= bounded), -free / tokens, 0.0)
    return -np.where(keep, np.minimum(free, bounded), 0.0).sum() / tokens, slope


@pytest.fixture
def grpo_vectors():
    def compute(case):
        x = case.arrays(np.array, dtype=float)
        old = x.log_probs_new if x.log_probs_old is None else x.log_probs_old
        low, high = case.hyperparameters["epsilon_low"], case.hyperparameters["epsilon_high"]
        loss, gradient = policy_loss(x.log_probs_new, old, x.advantages, x.mask, low, high)
        return {"loss": loss, "gradient": gradient}

    return Loss(compute, Claims(surrogate="clip", aggregate="token-mean"))
