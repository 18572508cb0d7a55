"""What a KL function returns."""

from __future__ import annotations

from typing import NamedTuple

from grpo_cli.batch import F64


class Kl(NamedTuple):
    """[N] k; [N] ∂k/∂log π_θ; [N] ∂k/∂log ρ, None where the ratio has no part in it."""

    value: F64
    by_log_prob: F64
    by_ratio: F64 | None
