"""OpenRLHF's denominators."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights, per_token


def nonempty_response_mean(lengths: I64) -> Weights:
    """OpenRLHF's sequence mean: ``response-mean`` over the responses that have tokens at all.

    A response's own mean is over its tokens + 1e-8, as in OpenRLHF.
    """
    counts = (lengths > 0).astype(np.float64)
    return Weights(
        per_token(lengths, 1e-8), counts, 1.0, "responses with tokens, each by its own tokens"
    )


CHOICES = {"openrlhf/response-mean": Choice(nonempty_response_mean)}
ALIASES = {
    "openrlhf/seq-mean-token-mean": "openrlhf/response-mean",
    "openrlhf/token-mean": "token-mean",
}
