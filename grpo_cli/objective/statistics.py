"""What a first pass finds of a whole batch: statistics for advantages, and denominators of terms.

The first pass adds them up exactly; the second evaluates. So neither depends on how the input was
cut, nor on the order of its records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.objective.arithmetic.exact_sums import ExactSum, two_product
from grpo_cli.objective.inputs import Inputs, take_penalty
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Moments, Sample

if TYPE_CHECKING:
    from fractions import Fraction  # slow to import, and seldom needed


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


@dataclass
class BatchSums:
    """What a first pass adds up of one batch.

    Attributes:
        moments: mean and std of the sample that its advantage measures.
        counts: term → Σ of what the term's weights count, a whole number.
    """

    moments: ExactMoments = field(default_factory=ExactMoments)
    counts: dict[str, float] = field(default_factory=dict)

    def merge(self, other: BatchSums) -> None:
        """Adds the sums of other records of the batch."""
        self.moments.merge(other.moments)
        for term, count in other.counts.items():
            self.counts[term] = self.counts.get(term, 0.0) + count


class Whole(NamedTuple):
    """The batches that some records belong to.

    Attributes:
        batches: their sums.
        of_record: [M] the batch of each record.
    """

    batches: Sequence[BatchSums]
    of_record: I64

    def moments(self, records: Segments) -> Moments:
        """The statistics of its batch for each response."""
        found = [batch.moments.read() for batch in self.batches]
        table = np.array(found, dtype=np.float64).reshape(-1, 3)[self.of_record]
        spread = np.repeat(table, records.lengths, axis=0)
        return Moments(spread[:, 0], spread[:, 1], spread[:, 2])

    def denominators(self) -> Mapping[str, F64] | None:
        """Term → [M] what its weights count over the record's batch; None where not counted."""
        terms = {term for batch in self.batches for term in batch.counts}
        if not terms:
            return None
        return {
            term: np.array([batch.counts.get(term, 0.0) or 1.0 for batch in self.batches])[
                self.of_record
            ]
            for term in terms
        }


def _float(number: Fraction) -> float:
    """The number rounded once; infinity for one beyond the largest double."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def moments(batch: Batch, objective: Objective, whole: Whole | None) -> Moments | None:
    """The statistics that the objective's advantage reads; None where it needs none.

    Args:
        batch: the records.
        objective: its batch is each record, or spans several.
        whole: the batches of the records; None where ``batch`` is all of one.
    """
    if objective.advantage.choice.measure is None:
        return None
    if objective.batch == "record":
        return of_records(batch, objective)
    if whole is None:
        sums = BatchSums()
        sums.moments.add(sample(batch, objective))
        whole = Whole([sums], np.zeros(batch.records.count, dtype=np.int64))
    return whole.moments(batch.records)


def sample(batch: Batch, objective: Objective) -> Sample:
    """The sample that the objective's advantage measures, of these records."""
    inputs = Inputs(batch)
    take_penalty(inputs, objective)
    measured: Sample = inputs.measure(objective.advantage, "advantage")
    return measured


def of_records(batch: Batch, objective: Objective) -> Moments:
    """Each record's own statistics, for its responses."""
    whole = sample(batch, objective)
    records = batch.record_tokens if whole.per_token else batch.records
    ends = np.cumsum(records.lengths)
    starts = [0, *ends.tolist()]
    sums = [BatchSums() for _ in ends]
    for own, start, end in zip(sums, starts, starts[1:], strict=False):
        own.moments.add(Sample(whole.values[start:end], whole.times[start:end]))
    return Whole(sums, np.arange(len(sums))).moments(batch.records)
