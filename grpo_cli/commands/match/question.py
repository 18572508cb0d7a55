"""A number, and the records that it was logged of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.commands.match.sums.data import Data
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine.chunk import Chunk


@dataclass(frozen=True)
class Question:
    """A number, and the records that it was logged of.

    Attributes:
        target: the loss or the objective.
        data: the records; ``first`` some of them.
        others: what was logged beside it: kl, clip_fraction, gradient_norm.
    """

    target: Typed
    data: Data
    first: Chunk
    others: Sequence[Typed] = ()
