"""A number, and the records that it was logged of."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_cli.commands.match.sums.data import Data
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine.chunk import Chunk


@dataclass(frozen=True)
class Question:
    """A number, and the records that it was logged of."""

    target: Typed
    data: Data
    first: Chunk
