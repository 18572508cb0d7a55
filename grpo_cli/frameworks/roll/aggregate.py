"""ROLL's denominators, where they are not verl's."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def seq_mean_token_sum_norm(lengths: I64, *, response_length: float) -> Weights:
    """ROLL's: the token sum over the padded width, not divided by the number of responses."""
    return Weights(np.ones(len(lengths)), None, response_length, "response_length")


CHOICES = {"roll/seq-mean-token-sum-norm": Choice(seq_mean_token_sum_norm, total=True)}
ALIASES = {
    "roll/token-mean": "verl/token-mean",
    "roll/seq-mean-token-sum": "verl/seq-mean-token-sum",
    "roll/seq-mean-token-mean": "verl/seq-mean-token-mean",
}
