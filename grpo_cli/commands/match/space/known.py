"""What the flags or the records say, so that it need not be searched."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from grpo_cli.engine.chunk import Chunk
from grpo_cli.variants.plan import Plan


class Depth(IntEnum):
    """How much is searched.

    QUICK leaves out what costs a look at every token for itself: other ratios and surrogates than
    a row's own, statistics of the whole input, advantages of tokens. PLAIN has all of that. WIDE
    searches ε, and β in the reward, as well.
    """

    QUICK = 0
    PLAIN = 1
    WIDE = 2


@dataclass(frozen=True)
class Known:
    """What the flags or the records say, so that it is not searched."""

    epsilon: bool
    beta: bool
    length: bool

    @classmethod
    def of(cls, base: Plan, chunk: Chunk) -> Known:
        """Told from the flags and the first records."""
        given = {*base.flags, *chunk.settings}
        epsilon = bool(given & {"epsilon_low", "epsilon_high"})
        return cls(epsilon, "beta" in given, "max_completion_length" in given)
