"""Which batch and micro-batch a record belongs to."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple


class MicroBatch(NamedTuple):
    """Where in its optimiser step a record was trained on.

    Attributes:
        rank: the data-parallel rank; None if the record does not say.
        number: the micro-batch of the rank; None if the record does not say.
        source: the file of a record that gives a number and no rank; empty otherwise.
    """

    rank: Hashable = None
    number: Hashable = None
    source: str = ""

    @property
    def given(self) -> tuple[bool, bool]:
        """Whether rank and number are known."""
        return self.rank is not None, self.number is not None


class BatchFields(dict[str, Any]):
    """Field → value of the batch that a record belongs to, and its place in it."""

    micro_batch = MicroBatch()
