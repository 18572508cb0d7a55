"""NeMo-RL's mean over responses."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights, per_token


def nemo_response_mean(lengths: I64) -> Weights:
    """``response-mean`` with each response's own mean over its tokens + 1e-8, as NeMo-RL has it.

    The 1e-8 that NeMo-RL adds to the number of responses, a factor of
    the whole, is left out.
    """
    counts = np.ones(len(lengths))
    numerator = per_token(lengths, 1e-8)
    return Weights(numerator, counts, 1.0, "responses, each by its own tokens + 1e-8")


CHOICES = {"nemo-rl/response-mean": Choice(nemo_response_mean)}
