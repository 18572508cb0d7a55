"""The records that were left out: how many, and the first of their errors in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from grpo_cli.errors import InputError

FEW = 20


@dataclass
class Skipped:
    """The errors of records that were left out, in flat memory.

    Attributes:
        most: how many errors are kept; 0 for all.
        count: how many there were.
        first: those that are kept, in order.
    """

    most: int = FEW
    count: int = 0
    first: list[InputError] = field(default_factory=list)

    def add(self, error: InputError) -> None:
        """Counts one more."""
        self.merge(Skipped(count=1, first=[error]))

    def merge(self, later: Skipped) -> None:
        """Adds those of a piece of input that follows."""
        self.count += later.count
        room = self.most - len(self.first) if self.most else len(later.first)
        self.first += later.first[:room]

    @property
    def more(self) -> int:
        """How many are not kept."""
        return self.count - len(self.first)

    def __len__(self) -> int:
        """How many records were left out."""
        return self.count

    def __iter__(self) -> Iterator[InputError]:
        """The errors that are kept."""
        return iter(self.first)
