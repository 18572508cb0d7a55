"""Which of the probe's features the user's data has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from grpo_cli.batch import F64, I64, Batch
from grpo_cli.objective.inputs import Inputs


def present(batches: Sequence[Batch]) -> set[str]:
    """The names of ``probe.FEATURES`` that hold on the data."""
    found = {
        "lengths": len({*_all(batch.responses.lengths for batch in batches)}) > 1,
        "sizes": len({*_all(np.bincount(batch.groups) for batch in batches)}) > 1,
        "ratios": any(_moved(Inputs(batch).get("token_log_ratio")) for batch in batches),
        "reference": any(_moved(Inputs(batch).get("log_ratio_ref")) for batch in batches),
        "spreads": len({spread for batch in batches for spread in _spreads(batch)}) > 1,
        "rollout": any(_engine_differs(batch) for batch in batches),
    }
    return {name for name, holds in found.items() if holds}


def _all(arrays: Iterable[I64]) -> list[int]:
    return [one for array in arrays for one in array.tolist()]


def _moved(log_ratio: F64 | None) -> bool:
    return log_ratio is not None and bool(log_ratio.any())


def _spreads(batch: Batch) -> list[float]:
    """The range of the rewards (or else the advantages) in each group, but for rounding."""
    values = Inputs(batch).get("rewards")
    values = batch.advantages if values is None else values
    if values is None:
        return []
    low, high = np.full(batch.group_count, np.inf), np.full(batch.group_count, -np.inf)
    np.minimum.at(low, batch.groups, values)
    np.maximum.at(high, batch.groups, values)
    return [round(float(spread), 6) for spread in high - low]


def _engine_differs(batch: Batch) -> bool:
    if batch.log_probs_rollout is None or batch.log_probs_old is None:
        return False
    return not np.array_equal(batch.log_probs_rollout, batch.log_probs_old)
