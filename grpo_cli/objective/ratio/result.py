"""What a ratio function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from grpo_cli.batch import F64


class Ratio(NamedTuple):
    """[N] log ρ (nats), [N] ρ, and ``pull``: [N] ∂/∂log ρ → [N] ∂/∂log π_θ."""

    log_ratio: F64
    ratio: F64
    pull: Callable[[F64], F64]
