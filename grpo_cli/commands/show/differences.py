"""What is told of tokens besides their rows: how policies differ, what moves clipped ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import ENTROPY, KL


def differences_of(breakdown: Breakdown) -> dict[str, F64]:
    """[N] by name, those that the record has the log-probs for.

    ``difference`` is log π_θ − log π_old, which is log ρ only where the ratio is the token's own;
    ``mismatch`` is log π_old − log π_rollout: the trainer against the engine that sampled.
    """
    batch = breakdown.batch
    found = {}
    if batch.log_probs_new is not None and batch.log_probs_old is not None:
        found["difference"] = batch.log_probs_new - batch.log_probs_old + 0.0
    if batch.log_probs_old is not None and batch.log_probs_rollout is not None:
        found["mismatch"] = batch.log_probs_old - batch.log_probs_rollout + 0.0
    return found


_MOVERS = {KL: "the KL", ENTROPY: "the entropy bonus"}


def moves_clipped(breakdown: Breakdown) -> tuple[NDArray[np.bool_], str]:
    """[N] the tokens that have a gradient and none of the policy term; and what gives it."""
    moving = {term.name: term.slope for term in breakdown.active if term.slope is not None}
    policy = moving.pop(breakdown.policy.name, None)
    still = np.ones(len(breakdown.gradient), np.bool_) if policy is None else policy == 0.0
    moved = [name for name, slope in moving.items() if slope[still].any()]
    names = [f"{_MOVERS.get(name, name)}'s" for name in moved]
    return still & (breakdown.gradient != 0.0), " and ".join(names)
