"""What a ratio function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64


class Ratio(NamedTuple):
    """[N] log ρ (nats), [N] ρ, and ``pull``: [N] ∂/∂log ρ → [N] ∂/∂log π_θ."""

    log_ratio: F64
    ratio: F64
    pull: Callable[[F64], F64]


def times(ratio: F64, factor: F64) -> F64:
    """[N] ρ·factor; 0 where the factor is, even where ρ is too large for a double."""
    product = ratio * factor
    return product if np.isfinite(ratio).all() else np.where(factor == 0.0, 0.0, product)
