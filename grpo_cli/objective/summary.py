"""A breakdown's numbers per response and per record: clip counts, ratios, gradient norms.

No sum depends on what else is evaluated with it: a response is summed over its own tokens, and a
record exactly (``math.fsum``) over its responses.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments, count_turns
from grpo_cli.objective.breakdown import Breakdown, record_sums
from grpo_cli.objective.terms import POLICY


class Summary:
    """Reductions of a breakdown. N tokens, R responses, M records."""

    def __init__(self, breakdown: Breakdown) -> None:
        self.breakdown = breakdown
        self.responses = breakdown.batch.responses
        self.records = breakdown.batch.records

    @cached_property
    def record_tokens(self) -> Segments:
        """The tokens of each record."""
        return Segments(self.breakdown.record_tokens)

    @cached_property
    def turn_counts(self) -> I64:
        """[R] the turns of each response."""
        return count_turns(self.responses, self.breakdown.batch.turns)

    @cached_property
    def trajectory_firsts(self) -> NDArray[np.bool_]:
        """[R] whether each is the first response of its trajectory."""
        trajectories = self.breakdown.batch.trajectories
        found = np.ones(self.responses.count, dtype=np.bool_)
        if trajectories is not None:
            found[1:] = np.diff(np.maximum.accumulate(trajectories)) > 0
        return found

    @cached_property
    def clipped_low(self) -> I64:
        """[R] how many tokens the lower clip bound."""
        return self._count(-1)

    @cached_property
    def clipped_high(self) -> I64:
        """[R] how many tokens the upper clip bound."""
        return self._count(1)

    def _count(self, side: int) -> I64:
        bound = self.breakdown.clip == side
        if not bound.any():
            return np.zeros(self.responses.count, dtype=np.int64)
        return self.responses.sum(bound.astype(np.int64))

    @cached_property
    def ratio_sums(self) -> F64:
        """[R] Σ ρ of each response; inf where it is too large for a double."""
        with np.errstate(over="ignore"):
            return self.responses.sum(self.breakdown.ratio)

    @property
    def shared(self) -> bool:
        """Whether one set of weights serves all the terms that have a gradient."""
        parts = self.breakdown.gradient_parts
        return len(parts) == 1 and not parts[0].is_scaled

    @cached_property
    def gradient_squares(self) -> F64:
        """[R] Σ (∂J/∂log π_θ)² of each response, J being its record's objective times its count.

        That is: without the denominator that counts responses, tokens or groups, which a record
        and a batch each put in for themselves. Only where all terms share their weights.
        """
        (part,) = self.breakdown.gradient_parts
        with np.errstate(over="ignore"):
            factor = np.square(part.weights.factor)
            return factor * self.responses.sum(part.slope * part.slope)

    @cached_property
    def record_values(self) -> list[F64]:
        """[M] Σ w·value of each term in each record."""
        return [self.breakdown.record_value(term.name) for term in self.breakdown.terms]

    @cached_property
    def products(self) -> list[tuple[str, str, F64]]:
        """[R] the parts of ‖Σ g_part/D_part‖², each part of the gradient having a denominator D."""
        if self.shared:
            return [(POLICY, POLICY, self.gradient_squares)]
        parts = self.breakdown.gradient_parts
        gradients = [(part.name, part.without_count(self.responses)) for part in parts]
        return [
            (name, other, self.responses.sum(gradient * another))
            for at, (name, gradient) in enumerate(gradients)
            for other, another in gradients[at:]
        ]

    @cached_property
    def record_gradient_squares(self) -> F64:
        """[M] ‖∂J/∂log π_θ‖² of each record."""
        with np.errstate(over="ignore"):
            if self.shared:
                (part,) = self.breakdown.gradient_parts
                counts = np.maximum(self.breakdown.count(part.weights), 1)
                return record_sums(self.gradient_squares, self.records) / (counts * counts)
            squares = self.responses.sum(np.square(self.breakdown.record_gradient))
            return record_sums(squares, self.records)

    @cached_property
    def response_gradient_norms(self) -> F64:
        """[R] ‖∂J/∂log π_θ‖ over each response's tokens."""
        with np.errstate(over="ignore"):
            return np.sqrt(self.responses.sum(np.square(self.breakdown.gradient)))

    @cached_property
    def dead(self) -> NDArray[np.bool_]:
        """[groups] whether every advantage of a group is 0."""
        found = np.ones(self.breakdown.batch.group_count, dtype=np.bool_)
        advantage = self.breakdown.response_advantage
        if advantage is not None:
            moved = np.flatnonzero(advantage)
        else:
            moved = self.responses.index[np.flatnonzero(self.breakdown.advantage)]
        found[self.breakdown.batch.groups[moved]] = False
        return found

    @cached_property
    def dead_groups(self) -> I64:
        """[M] how many groups have no advantage but 0."""
        return np.bincount(self.breakdown.group_record[self.dead], minlength=self.records.count)

    @cached_property
    def local_groups(self) -> list[int]:
        """[R] the number of each response's group within its own record."""
        counts = self.breakdown.record_groups
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        return (self.breakdown.batch.groups - first[self.records.index]).tolist()

    @cached_property
    def on_policy(self) -> NDArray[np.bool_]:
        """[M] whether a record has tokens, and no ratio but exactly 1."""
        tokens = self.record_tokens
        some = tokens.lengths > 0
        firsts = self.breakdown.ratio[tokens.starts[some]]
        if not (firsts == 1.0).any():  # the usual case, and fast
            return np.zeros(self.records.count, dtype=np.bool_)
        moved = self.breakdown.ratio != 1.0
        found: NDArray[np.bool_] = some & (tokens.sum(moved.astype(np.int64)) == 0)
        return found
