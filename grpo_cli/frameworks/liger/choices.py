"""Liger-Kernel's denominator where it differs from TRL's."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import choice
from grpo_cli.objective.results import Weights


@choice("aggregate", "liger/luspo", total=True)
def liger_luspo(lengths: I64, *, response_length: float) -> Weights:
    """Liger's Triton luspo: Σᵢ |oᵢ|·Σₜ over responses × padded width.

    With the sequence ratio a response is weighted by |oᵢ|² instead of |oᵢ|, and padding counts in
    the denominator. Liger's chunked luspo is TRL's.
    """
    of = "responses × response_length, of token sums × length"
    return Weights(lengths.astype(np.float64), np.ones(len(lengths)), response_length, of)
