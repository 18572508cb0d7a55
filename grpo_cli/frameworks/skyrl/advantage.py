"""SkyRL's advantage estimators, where they are not verl's."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.frameworks.verl.advantage import grpo
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


def maxrl(rewards: F64, groups: Groups) -> F64:
    """A = (s − μ) / (μ + 1e-6) over the group; A = s for a group of one.

    A negative mean turns the sign round: it is meant for rewards of 0 and 1.

    References:
        Tajwar et al., MaxRL, 2026 (arXiv 2602.02710).
    """
    means = groups.sum(rewards) / np.maximum(groups.sizes, 1)
    alone = groups.sizes[groups.index] == 1
    return np.where(alone, rewards, groups.offsets(rewards) / (means[groups.index] + 1e-6))


def batch_normalised(
    rewards: F64,
    groups: Groups,
    moments: Moments,
    *,
    response_length: float,
    global_batch_size: float,
) -> F64:
    """``verl/grpo`` with ``advantage_batch_normalize``: (A − m)/√max(v, 1e-8).

    m is the sum of A over the batch's tokens by all cells of its padded table, masked and padded
    ones too; v is the mean over the tokens of (A − m)².

    Args:
        rewards: [R].
        groups: which responses answer the same prompt.
        moments: of ``verl/grpo`` over the tokens of the batch.
        response_length: the padded width of the table.
        global_batch_size: its rows, the responses of the training batch.

    References:
        SkyRL a9564572, trainer.py, ``normalize_minibatch_advantages``.
    """
    mean = moments.mean * moments.count / (response_length * global_batch_size)
    variance = moments.squares / np.maximum(moments.count, 1.0) + np.square(moments.mean - mean)
    return (grpo(rewards, groups) - mean) / np.sqrt(np.maximum(variance, 1e-8))


def _over_tokens(rewards: F64, groups: Groups, lengths: I64) -> Sample:
    return Sample(grpo(rewards, groups), lengths.astype(np.float64))


CHOICES = {
    "skyrl/maxrl": Choice(maxrl),
    "skyrl/batch-normalised": Choice(batch_normalised, measure=_over_tokens),
}
ALIASES = {
    "skyrl/grpo": "verl/grpo",
    "skyrl/grpo_nostd": "verl/grpo_nostd",
    "skyrl/rloo": "leave-one-out",
}
