"""What an aggregation returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64


class Weights(NamedTuple):
    """w of a response's tokens = unit / (divisor · Σ counts over the batch).

    Attributes:
        unit: [R] the response's own part.
        counts: [R] what each response adds to the denominator that counts (1, its tokens, ...);
            None where nothing is counted.
        divisor: the constant part of the denominator.
        of: what the denominator is, in words.
    """

    unit: F64
    counts: F64 | None
    divisor: float
    of: str


def per_token(lengths: I64) -> F64:
    """[R] 1/|oᵢ|; 1 for a response without tokens, which nothing is multiplied by."""
    return 1.0 / np.maximum(lengths, 1)
