"""slime's denominators."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def slime_token_mean(lengths: I64) -> Weights:
    """``--calculate-per-token-loss`` of slime: ``token-mean``; an empty response counts as 1."""
    counts = np.maximum(lengths, 1).astype(np.float64)
    return Weights(np.ones(len(lengths)), counts, 1.0, "tokens, and 1 per response without any")


CHOICES = {"slime/token-mean": Choice(slime_token_mean)}
