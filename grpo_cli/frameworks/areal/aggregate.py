"""AReaL's denominators."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def areal_token_mean(lengths: I64, responses: Segments, records: Segments) -> Weights:
    """AReaL's: the mean over a record's kept tokens, records weighted by all of their tokens.

    A record stands for a micro-batch. The two counts differ only where a correction takes tokens
    out of the denominator, as ``areal/m2po`` does; without one it is ``token-mean``.

    Args:
        lengths: [R] tokens that the correction kept.
        responses: has [R] all of their tokens.
        records: cuts the responses into records.
    """
    whole = responses.lengths.astype(np.float64)
    share: F64 = records.sum(whole) / np.maximum(records.sum(lengths), 1)
    unit = np.repeat(share, records.lengths)
    return Weights(unit, whole, 1.0, "tokens that each record kept, records by all their tokens")


CHOICES = {"areal/token-mean": Choice(areal_token_mean)}
