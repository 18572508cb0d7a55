"""Which of the probe's features the user's data has: all of its records, however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch
from grpo_cli.objective.inputs import Inputs

T = TypeVar("T", int, float)


@dataclass
class Features:
    """Which of ``probe.FEATURES`` the data has, added up chunk by chunk.

    Attributes:
        lengths, sizes, spreads: of responses and groups: all there are, or two that differ.
        found: the names of the others that hold.
    """

    lengths: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    spreads: set[float] = field(default_factory=set)
    found: set[str] = field(default_factory=set)

    def add(self, batch: Batch) -> None:
        """Adds records; what is known to hold is not looked at again."""
        _add(self.lengths, lambda: batch.responses.lengths)
        _add(self.sizes, lambda: np.bincount(batch.groups))
        _add(self.spreads, lambda: _spreads(batch))
        for name, holds in _HOLD.items():
            if name not in self.found and holds(batch):
                self.found.add(name)

    def merge(self, other: Features) -> None:
        """Adds other records."""
        self.lengths |= other.lengths
        self.sizes |= other.sizes
        self.spreads |= other.spreads
        self.found |= other.found

    @property
    def names(self) -> set[str]:
        """Those that hold on the data."""
        several: Mapping[str, set[Any]] = {
            "lengths": self.lengths,
            "sizes": self.sizes,
            "spreads": self.spreads,
        }
        return self.found | {name for name, values in several.items() if len(values) > 1}


def _add(known: set[T], values: Callable[[], NDArray[Any]]) -> None:
    """Adds the least and the greatest, unless it is known that they differ."""
    if len(known) > 1:
        return
    every: NDArray[Any] = values()
    if len(every):
        known.update((every.min().item(), every.max().item()))


def _moved(log_ratio: F64 | None) -> bool:
    return log_ratio is not None and bool(log_ratio.any())


def _spreads(batch: Batch) -> F64:
    """The range of the rewards (or else the advantages) in each group, but for rounding."""
    values = Inputs(batch).get("rewards")
    values = batch.advantages if values is None else values
    if values is None:
        return np.zeros(0)
    low, high = np.full(batch.group_count, np.inf), np.full(batch.group_count, -np.inf)
    np.minimum.at(low, batch.groups, values)
    np.maximum.at(high, batch.groups, values)
    spreads: F64 = np.round(high - low, 6)
    return spreads


def _engine_differs(batch: Batch) -> bool:
    if batch.log_probs_rollout is None or batch.log_probs_old is None:
        return False
    return not np.array_equal(batch.log_probs_rollout, batch.log_probs_old)


_HOLD: Mapping[str, Callable[[Batch], bool]] = {
    "ratios": lambda batch: _moved(Inputs(batch).get("token_log_ratio")),
    "reference": lambda batch: _moved(Inputs(batch).get("log_ratio_ref")),
    "rollout": _engine_differs,
}
