"""The reward-to-go of each token, and verl's whitening over the tokens of a batch."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.arithmetic.groups import suffix_sums
from grpo_cli.objective.results import Moments

_TINY = 1e-8  # what verl adds to the count of a mean, and to the variance


def to_go(task_rewards: F64, token_penalty: F64, responses: Segments, gamma: float) -> F64:
    """[N] Σₖ γᵏ·R_{t+k}: R is the reward on a response's last token, less each token's penalty.

    Args:
        task_rewards: [R] one per response.
        token_penalty: [N] what the KL takes off at each token.
        responses: cuts the tokens into responses.
        gamma: discount per token.
    """
    filled = responses.lengths > 0
    rewards = -token_penalty
    rewards[(np.cumsum(responses.lengths) - 1)[filled]] += task_rewards[filled]
    return suffix_sums(rewards, responses, gamma)


def whiten(values: F64, moments: Moments) -> F64:
    """(x − m)/√(v + 1e-8), with m = Σx/(n + 1e-8), v = Σ(x − m)²/(n + 1e-8) · n/(n − 1).

    Args:
        values: x, per response [R] or token [N], as the moments are.
        moments: of x over the n tokens of the batch.

    Raises:
        InputError: for a batch of a single token, as verl does.
    """
    count = moments.count
    if (count == 1.0).any():
        raise InputError("expected at least 2 tokens to whiten the advantages over, got 1")
    mean = moments.mean * (count / (count + _TINY))
    squares = moments.squares + count * np.square(moments.mean - mean)
    variance = squares / (count + _TINY) * (count / np.maximum(count - 1.0, 1.0))
    return (values - mean) / np.sqrt(variance + _TINY)
