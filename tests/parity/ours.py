"""Our numbers on a ragged batch, in the shapes that comparisons want."""

from __future__ import annotations

from typing import Any

import numpy as np

from grpo_cli import evaluate
from grpo_cli.api import Evaluated

from .batches import F64, Ragged


def evaluated(
    batch: Ragged,
    variant: str,
    *,
    stages: dict[str, str] | None = None,
    columns: tuple[str, ...] = (),
    rewards: bool = False,
    more: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> Evaluated:
    """``grpo_cli.evaluate`` on the batch as a record, with the given columns (default: all).

    Args:
        more: what else the record has, as ``{"framework": {…}}``.
    """
    record = batch.record(*columns, rewards=rewards, **more or {})
    return evaluate(record, variant, stages=stages, **hyperparameters)


def flat(rows: list[F64]) -> F64:
    """One array of all responses' tokens."""
    return np.concatenate(rows) if rows else np.zeros(0)
