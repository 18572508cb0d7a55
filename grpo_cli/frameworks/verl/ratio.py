"""verl's sequence ratio."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Ratio


def sequence_token(token_log_ratio: F64, responses: Segments, *, log_ratio_max: float) -> Ratio:
    """``sequence-token`` with log ρ bounded above only, where the gradient then is 0.

    verl's and SkyRL's gspo, whose bound is 10; ``log_ratio_clamp`` bounds both sides.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), section on GSPO-token.
    """
    mean = responses.mean(token_log_ratio)
    inside = responses.spread(mean <= log_ratio_max)
    bounded = np.minimum(mean, log_ratio_max)
    return Ratio(
        np.repeat(bounded, responses.lengths),
        np.repeat(np.exp(bounded), responses.lengths),
        lambda slope: np.where(inside, slope, 0.0),
    )


CHOICES = {
    "verl/sequence-token": Choice(
        sequence_token,
        {"log_ratio_max": 10.0},
        stops_gradient="each token's own log-prob moves the sequence's ratio",
    )
}
