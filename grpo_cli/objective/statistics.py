"""Statistics of a whole batch, for advantages that are normalised over it.

A first pass over the input adds up the sample exactly; the second evaluates. So the statistics
do not depend on how the input was cut, nor on the order of its records.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from grpo_cli.batch import I64, Batch
from grpo_cli.objective.arithmetic.exact_sums import ExactSum, two_product
from grpo_cli.objective.inputs import Inputs, take_penalty
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Moments, Sample

if TYPE_CHECKING:
    from fractions import Fraction  # slow to import, and few objectives need it


class ExactMoments:
    """Count, Σx and Σx² of a sample, exactly; they merge."""

    def __init__(self) -> None:
        self.count = 0
        self.total = ExactSum()
        self.squares = ExactSum()

    def add(self, sample: Sample) -> None:
        """Adds values, each as often as its multiplicity says."""
        self.count += int(sample.times.sum())
        for part in two_product(sample.values, sample.times):
            self.total.add(part)
        for square in two_product(sample.values, sample.values):
            for part in two_product(square, sample.times):
                self.squares.add(part)

    def merge(self, other: ExactMoments) -> None:
        """Adds another sample's moments."""
        self.count += other.count
        self.total.merge(other.total)
        self.squares.merge(other.squares)

    def read(self) -> tuple[int, float, float]:
        """Count, mean and Σ(x − mean)², each rounded once."""
        if not self.count:
            return 0, 0.0, 0.0
        total, squares = self.total.fraction(), self.squares.fraction()
        return self.count, _float(total / self.count), _float(squares - total * total / self.count)


def _float(number: Fraction) -> float:
    """The number rounded once; infinity for one beyond the largest double."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def wanted(objective: Objective) -> bool:
    """Whether the objective's advantage needs statistics of the batch."""
    return objective.advantage.choice.measure is not None


def moments(batch: Batch, objective: Objective, measured: ExactMoments | None) -> Moments | None:
    """The statistics that the objective's advantage reads; None where it needs none.

    Args:
        batch: the records.
        objective: its batch is each record, or the input.
        measured: the statistics of the whole input; None where ``batch`` is all of it.
    """
    if not wanted(objective):
        return None
    if objective.batch == "record":
        return of_records(batch, objective)
    if measured is None:
        measured = ExactMoments()
        measured.add(sample(batch, objective))
    return of_input(measured, batch)


def sample(batch: Batch, objective: Objective) -> Sample:
    """The sample that the objective's advantage measures, of these records."""
    inputs = Inputs(batch)
    take_penalty(inputs, objective)
    measured: Sample = inputs.measure(objective.advantage, "advantage")
    return measured


def of_input(moments: ExactMoments, batch: Batch) -> Moments:
    """The same statistics for every response."""
    return Moments(*(np.full(batch.responses.count, float(value)) for value in moments.read()))


def of_records(batch: Batch, objective: Objective) -> Moments:
    """Each record's own statistics, for its responses."""
    whole = sample(batch, objective)
    ends = np.cumsum(_tokens(batch) if whole.per_token else batch.records.lengths)
    found = []
    start = 0
    for end in ends.tolist():
        one = ExactMoments()
        one.add(Sample(whole.values[start:end], whole.times[start:end]))
        found.append(one.read())
        start = end
    table = np.array(found, dtype=np.float64).reshape(-1, 3)
    spread = np.repeat(table, batch.records.lengths, axis=0)
    return Moments(spread[:, 0], spread[:, 1], spread[:, 2])


def _tokens(batch: Batch) -> I64:
    return batch.records.sum(batch.responses.lengths)
