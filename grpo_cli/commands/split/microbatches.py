"""How a batch is cut into micro-batches, accumulation and ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.errors import UsageError


@dataclass(frozen=True)
class Cut:
    """How a batch is cut: responses in order, n to a micro-batch.

    Attributes:
        micro_batch: n, responses of a micro-batch.
        accumulate: micro-batches that one rank accumulates in one optimiser step.
        ranks: data-parallel ranks.
        responses: the responses that there are.
    """

    micro_batch: int
    accumulate: int
    ranks: int
    responses: int

    @property
    def sizes(self) -> I64:
        """[M] responses of each micro-batch; the last may be smaller."""
        starts = np.arange(0, self.responses, self.micro_batch)
        return np.minimum(self.responses - starts, self.micro_batch)

    @property
    def steps(self) -> I64:
        """[M] the optimiser step of each micro-batch."""
        return np.arange(len(self.sizes)) // (self.accumulate * self.ranks)

    @property
    def cuts_nothing(self) -> bool:
        """Whether each micro-batch is a whole optimiser step."""
        return len(self.sizes) == int(self.steps[-1]) + 1


def cut(responses: int, micro_batch: int, accumulate: int | None, ranks: int) -> Cut:
    """The cut; without ``accumulate`` all the responses are one optimiser step."""
    micro_batches = max(math.ceil(responses / micro_batch), 1)
    if ranks > micro_batches:
        raise UsageError(
            f"--ranks {ranks}: {responses} responses make {micro_batches} micro-batches of "
            f"{micro_batch}, fewer than the ranks"
        )
    return Cut(micro_batch, accumulate or math.ceil(micro_batches / ranks), ranks, responses)
