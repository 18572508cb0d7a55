"""The turns of a batch in the order of their trajectories."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.groups import Groups, suffix_sums


def order_turns(turns: Segments, responses: Segments, trajectories: I64 | None) -> TurnOrder:
    """Puts turns in order; each response is a trajectory where ``trajectories`` [R] is None."""
    index = np.arange(responses.count) if trajectories is None else trajectories
    return TurnOrder(turns, responses, Groups(index, int(index.max(initial=-1)) + 1))


class TurnOrder:
    """The T turns of each trajectory, one after the other, be it one response or several.

    The responses of a trajectory come in the order of the batch.

    Args:
        responses: cuts the tokens into responses; a turn has tokens of one alone.
        trajectories: the trajectory of each response.
    """

    def __init__(self, turns: Segments, responses: Segments, trajectories: Groups) -> None:
        self.turns = turns
        self.response: I64 = responses.owners(turns.starts)
        self._trajectory = trajectories.index[self.response]
        self._sorted = np.argsort(self._trajectory, kind="stable")
        self._runs = Segments(np.bincount(self._trajectory, minlength=trajectories.count))

    @cached_property
    def number(self) -> I64:
        """[T] each turn's number in its trajectory, 0-based."""
        found = np.empty_like(self._sorted)
        found[self._sorted] = self._runs.positions
        return found

    def returns(self, rewards: F64, discount: float) -> F64:
        """[T] Σₖ discountᵏ·r of the turn and of those that follow it in its trajectory."""
        found = np.empty_like(rewards)
        found[self._sorted] = suffix_sums(rewards[self._sorted], self._runs, discount)
        return found

    def following(self, values: F64) -> F64:
        """[T] the value of the next turn of the trajectory; 0 after the last one."""
        found = np.zeros_like(values)
        last = self._runs.positions == np.repeat(self._runs.lengths, self._runs.lengths) - 1
        before = self._sorted[:-1][~last[:-1]]
        found[before] = values[self._sorted[1:][~last[:-1]]]
        return found

    def peers(self, groups: Groups, *, by_number: bool) -> Groups:
        """The turns of one group; with ``by_number``, those of one number in their trajectories."""
        index = groups.index[self.response]
        if not by_number:
            return Groups(index, groups.count)
        most = int(self._runs.lengths.max(initial=0))
        return Groups(index * most + self.number, groups.count * most)
