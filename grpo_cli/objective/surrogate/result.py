"""What a surrogate function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64


class Surrogate(NamedTuple):
    """[N] s; [N] clip side −1, 0, 1; [N] ∂s/∂log ρ and ∂s/∂log π_θ, None where zero.

    ``empty`` is [R], what a response without tokens has for s where a framework gives it a term of
    its own (its ratio being 1); None where it has none.

    ``spread`` says how a token's s depends on other tokens, where it does: it takes ∂J/∂s·by_ratio
    of every token, [N], to ∂J/∂log ρ, [N].
    """

    value: F64
    clip: NDArray[np.int8]
    by_ratio: F64 | None
    by_log_prob: F64 | None
    empty: F64 | None = None
    spread: Callable[[F64], F64] | None = None


def side(high: NDArray[np.bool_], low: NDArray[np.bool_]) -> NDArray[np.int8]:
    """[N] 1 where the upper bound acted, −1 where the lower did, else 0."""
    return high.view(np.int8) - low.view(np.int8)


def unbound(count: int) -> NDArray[np.int8]:
    """[count] the side of tokens that no clip bounds."""
    return np.zeros(count, np.int8)
