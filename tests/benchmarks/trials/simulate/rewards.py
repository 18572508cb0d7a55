"""Rewards of healthy tasks, and the advantages that a trainer makes of them."""

from __future__ import annotations

import numpy as np

from trials.simulate.policy import F64, I64, Random
from trials.simulate.setup import Rewards


def drawn(random: Random, groups: I64, lengths: I64, rewards: Rewards) -> F64:
    """[R] or [R, functions]; prompts differ in difficulty, and some are solved always or never.

    binary: right or wrong. continuous: a score of a reward model, about N(prompt, 1).
    functions: right (0 or 1), format (0 or 0.5), brevity (0 to −0.5), one column each.
    shaped: right or wrong, less up to 0.2 for the length. solved: all right.
    """
    difficulty = random.beta(1.2, 1.2, int(groups.max()) + 1)[groups]
    right = (random.random(len(groups)) < difficulty).astype(np.float64)
    if rewards.kind == "solved":
        return np.ones(len(groups))
    if rewards.kind == "continuous":
        centre = random.normal(0.0, 1.5, int(groups.max()) + 1)[groups]
        return (centre + random.normal(0.0, 1.0, len(groups))).astype(np.float32).astype(float)
    brevity = -0.5 * np.minimum(lengths / 400.0, 1.0)
    if rewards.kind == "functions":
        tidy = 0.5 * (random.random(len(groups)) < 0.8)
        return np.stack([right, tidy, brevity.round(3)], axis=1)
    return right + 0.4 * brevity.round(4) if rewards.kind == "shaped" else right


def advantages(scores: F64, groups: I64, kind: str, eps: float) -> F64:
    """[R] in float32, as trainers compute them: r − r̄, over the group's std + eps for group-std."""
    scores = scores.astype(np.float32)
    found = np.zeros(len(scores), dtype=np.float32)
    for group in np.unique(groups):
        rows = groups == group
        own = scores[rows]
        found[rows] = own - own.mean()
        if kind == "group-std":
            spread = own.std(ddof=1) if len(own) > 1 else np.float32(0.0)
            found[rows] /= spread + np.float32(eps)
        if (own == own[0]).all():
            found[rows] = 0.0
    return found.astype(np.float64)


def summed(rewards: F64) -> F64:
    """[R] several functions added up."""
    return rewards if rewards.ndim == 1 else rewards.sum(axis=1)
