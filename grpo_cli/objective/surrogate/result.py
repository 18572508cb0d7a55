"""What a surrogate function returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64


class Surrogate(NamedTuple):
    """[N] s; [N] clip side −1, 0, 1; [N] ∂s/∂log ρ and ∂s/∂log π_θ, None where zero."""

    value: F64
    clip: NDArray[np.int8]
    by_ratio: F64 | None
    by_log_prob: F64 | None


def side(high: NDArray[np.bool_], low: NDArray[np.bool_]) -> NDArray[np.int8]:
    """[N] 1 where the upper bound acted, −1 where the lower did, else 0."""
    return high.view(np.int8) - low.view(np.int8)


def unbound(count: int) -> NDArray[np.int8]:
    """[count] the side of tokens that no clip bounds."""
    return np.zeros(count, np.int8)
