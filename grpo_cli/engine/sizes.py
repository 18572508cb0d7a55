"""How much the tokens of a batch move in all, which shares are parts of."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.rows.source import SIZED
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.breakdown import Breakdown


@dataclass
class Sizes:
    """Σ |gradient| and Σ |contribution| over the tokens of each batch, by its key; they merge."""

    sums: dict[tuple[Hashable, str], ExactSum] = field(default_factory=dict)

    def add(self, chunk: Chunk, breakdown: Breakdown) -> None:
        """Adds the tokens of a chunk to their batches."""
        keys, index = chunk.batches
        owner = np.repeat(index, breakdown.batch.records.lengths)
        for name, sums in _response_sizes(breakdown).items():
            for at, key in enumerate(keys):
                self.sums.setdefault((key, name), ExactSum()).add(sums[owner == at])

    def merge(self, other: Sizes) -> None:
        """Adds the tokens of other records."""
        for key, size in other.sums.items():
            self.sums.setdefault(key, ExactSum()).merge(size)

    def read(self, key: Hashable) -> list[float]:
        """[2] those of a batch; 0 where none of its records was evaluated."""
        return [self.sums.get((key, name), ExactSum()).value() for name in SIZED]


def record_sizes(breakdown: Breakdown) -> F64:
    """[M, 2] those of each record alone."""
    found = _response_sizes(breakdown).values()
    return np.array([breakdown.batch.records.sum(sums) for sums in found]).T


def _response_sizes(breakdown: Breakdown) -> dict[str, F64]:
    """[R] by name, those of each response."""
    sum_of = breakdown.batch.responses.sum
    return {name: sum_of(np.abs(getattr(breakdown, name))) for name in SIZED}
