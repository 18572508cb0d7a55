"""A plan on chunks of records: what it makes of each, and what it needs to know before."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.totals import Sizes, record_sizes
from grpo_cli.errors import InputError
from grpo_cli.objective import pipeline, statistics
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MisnamedColumnError, refuse_misnamed
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.statistics import BatchSums, Whole
from grpo_cli.variants.plan import Plan


@dataclass
class BatchStatistics:
    """What a pass over the input finds before records are evaluated; it merges.

    Attributes:
        batches: a batch's key, () where all is one → its sums.
        moments: whether they hold the statistics that the advantage needs.
        counts: whether they hold the denominators of the terms.
        sizes: what shares are parts of, by the key of the batch; None where it was not added up.
    """

    batches: dict[Hashable, BatchSums] = field(default_factory=dict)
    moments: bool = False
    counts: bool = False
    sizes: Sizes | None = None

    @property
    def empty(self) -> bool:
        """Whether no record was read."""
        return not (self.moments or self.counts or self.sizes)

    def merge(self, other: BatchStatistics) -> None:
        """Adds what was found in other records."""
        self.moments |= other.moments
        self.counts |= other.counts
        if other.sizes is not None:
            self.sizes = Sizes() if self.sizes is None else self.sizes
            self.sizes.merge(other.sizes)
        for key, sums in other.batches.items():
            self.sums(key).merge(sums)

    def sums(self, key: Hashable) -> BatchSums:
        """Those of a batch."""
        return self.batches.setdefault(key, BatchSums())

    def whole(self, chunk: Chunk) -> Whole:
        """The batches of a chunk's records."""
        keys, index = chunk.batches
        return Whole([self.batches.get(key, BatchSums()) for key in keys], index)

    def single(self, batch: Batch) -> Whole:
        """The only batch, for records that are a part of it."""
        only = self.batches.get((), BatchSums())
        return Whole([only], np.zeros(batch.records.count, dtype=np.int64))

    @property
    def words(self) -> str:
        """What distinguishes its statistics from others."""
        read = sorted((repr(key), sums.moments.read()) for key, sums in self.batches.items())
        if len(read) == 1:
            return f"{read[0][1]}"
        import hashlib  # slow to import, and rarely needed

        return hashlib.sha256(repr(read).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates chunks for a plan.

    Attributes:
        plan: which objective.
        measured: what a first pass found; None before it, and where none is wanted.
        rows: whether weights of tokens or responses are wanted, which need the denominators of
            their whole batch.
        shares: whether shares are wanted, which need what their whole batch adds up to.
        skip: whether records that cannot be evaluated are left out, of denominators too.
        needs_reference: whether a KL is never left out, since other records have a reference.
    """

    plan: Plan
    measured: BatchStatistics | None = None
    rows: bool = False
    shares: bool = False
    skip: bool = False
    needs_reference: bool = False

    @property
    def wanted(self) -> set[str]:
        """The attributes of ``BatchStatistics`` that a first pass still has to find."""
        if self.plan.batch == "record":
            return set()
        known = self.measured or BatchStatistics()
        asked = {"moments": self.plan.wants_moments, "counts": self.rows, "sizes": self.shares}
        return {name for name in asked if asked[name] and not getattr(known, name)}

    @property
    def words(self) -> str:
        """The objective in words, with the statistics that it was given: equal where it is."""
        plan = self.plan
        chosen = {**plan.swapped, **plan.flags}
        words = [plan.variant, *(f"{name}={chosen[name]!r}" for name in sorted(chosen))]
        if self.measured is not None and self.measured.moments:
            words.append(f"measured={self.measured.words}")
        return " ".join(words)

    def after(self, found: BatchStatistics) -> Evaluator:
        """The evaluator that knows what a pass over the whole input found."""
        if self.measured is not None:
            found.merge(self.measured)
        return replace(self, measured=found)

    def objective(self, chunk: Chunk) -> Objective:
        """The objective of a chunk's records."""
        return chunk.objective(self.plan, reference_given=self.needs_reference or None)

    def measure(self, chunk: Chunk) -> BatchStatistics:
        """A chunk's part of the first pass: the statistics, the denominators, or both.

        Where records have to be evaluated for their denominators, the statistics come first: then
        there are two such passes. What shares are parts of comes last.
        """
        found, wanted = BatchStatistics(), self.wanted
        if wanted == {"sizes"}:
            found.sizes = Sizes()
            found.sizes.add(chunk, self.evaluate(chunk))
            return found
        objective = self.objective(chunk)
        if self.skip:  # what cannot be evaluated is in no statistic either
            pipeline.evaluate(chunk.batch, objective)
        if "moments" in wanted:
            found.moments = True
            if objective.advantage.choice.measure is not None:
                self._add_moments(found, chunk, objective)
        lengths_say_it = not self.skip and objective.correction.choice.absent
        if "counts" in wanted and (lengths_say_it or not found.moments):
            found.counts = True
            keys, index = chunk.batches
            whole = None if self.measured is None else self.measured.whole(chunk)
            counted = pipeline.counts(chunk.batch, objective, whole, lengths_say_it=lengths_say_it)
            for key in keys:
                found.sums(key)
            for term, counts in counted.items():
                sums = np.bincount(index, counts, len(keys))
                for key, count in zip(keys, sums.tolist(), strict=True):
                    own = found.sums(key).counts
                    own[term] = own.get(term, 0.0) + count
        return found

    def _add_moments(self, found: BatchStatistics, chunk: Chunk, objective: Objective) -> None:
        sample = statistics.sample(chunk.batch, objective)
        keys, index = chunk.batches
        if len(keys) == 1:
            found.sums(keys[0]).moments.add(sample)
            return
        batch = chunk.batch
        records = batch.record_tokens if sample.per_token else batch.records
        owner = records.spread(index)
        for at, key in enumerate(keys):
            found.sums(key).moments.add(sample.of(owner == at))

    def evaluate(self, chunk: Chunk) -> Breakdown:
        """The chunk's breakdown.

        Raises:
            InputError: where the records lack what the plan needs; ``Chunk.run`` says which.
            HyperparameterError: where a value cannot be used with their groups.
        """
        whole = None if self.measured is None else self.measured.whole(chunk)
        return pipeline.evaluate(chunk.batch, self.objective(chunk), whole)

    def sizes(self, chunk: Chunk, breakdown: Breakdown) -> F64 | None:
        """[M, 2] the ``Sizes`` of the batch of each record; None where nobody added them up."""
        if self.plan.batch == "record":
            return record_sizes(breakdown)
        if self.measured is None or self.measured.sizes is None:
            return None
        keys, index = chunk.batches
        return np.array([self.measured.sizes.read(key) for key in keys])[index]

    def check(self, chunk: Chunk) -> None:
        """Refuses records with a misnamed column; to skip them, also what cannot be evaluated.

        Raises:
            InputError: why they cannot be used.
        """
        if chunk.batch.misnamed:
            self.refuse_misnamed(chunk)
        if self.skip:
            self.evaluate(chunk)

    def refuse_misnamed(self, chunk: Chunk) -> None:
        """Stops where the plan needs log-probs that records may have under another name.

        Raises:
            MisnamedColumnError: with the key, and how it is read.
        """
        try:
            refuse_misnamed(chunk.batch, self.objective(chunk))
        except MisnamedColumnError:
            raise
        except InputError:
            return  # a hyperparameter is missing, which is reported where the plan is evaluated


def usable(
    parts: Iterable[Chunk | InputError], evaluator: Evaluator
) -> Iterator[Chunk | InputError]:
    """The chunks, with errors in the place of records that the evaluator cannot use."""
    for part in parts:
        if isinstance(part, InputError):
            yield part
        else:
            each = part.each(evaluator.check)
            yield from (one if isinstance(one, InputError) else one[0] for one in each)
