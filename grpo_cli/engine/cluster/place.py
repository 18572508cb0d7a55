"""What a cluster can do, as ``flow`` needs it: Ray does it, and in tests this process."""

from __future__ import annotations

from typing import Any, Protocol

from grpo_cli.engine.cluster.portions import Files
from grpo_cli.records import Piece
from grpo_cli.records.open.ranges import Range

Ref = Any


class Cluster(Protocol):
    """Where tasks run. Each call gives a reference to what it comes to."""

    def room(self) -> int:
        """How many portions may be evaluated, or wait for it, at once."""
        ...  # pragma: no cover

    def read(self, wanted: Range) -> tuple[Ref, Ref]:
        """Reads a range: its ends, its bytes."""
        ...  # pragma: no cover

    def evaluate(self, number: int, portion: Files | Piece) -> Ref:
        """Evaluates a portion."""
        ...  # pragma: no cover

    def evaluate_range(
        self, number: int, wanted: Range, line: int, rest: Ref, completion: list[bytes]
    ) -> Ref:
        """Evaluates what was read."""
        ...  # pragma: no cover

    def merge(self, answers: list[Ref]) -> Ref:
        """Merges answers."""
        ...  # pragma: no cover

    def ready(self, refs: list[Ref], *, at_least: int) -> list[Ref]:
        """Those that are there; waits until they are so many."""
        ...  # pragma: no cover

    def get(self, ref: Ref, place: str) -> Any:
        """What a reference is of; ``place`` says in an error what was worked on."""
        ...  # pragma: no cover

    def cancel(self, refs: list[Ref]) -> None:
        """Gives up work."""
        ...  # pragma: no cover
