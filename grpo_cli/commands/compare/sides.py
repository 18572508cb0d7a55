"""What each variant comes to on a piece of the data, batch by batch, and how pieces merge."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar

from grpo_cli.batch import F64
from grpo_cli.commands.compare.answer import ComparedVariant
from grpo_cli.commands.compare.shares import Shares
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator, without_misnamed
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.references import References
from grpo_cli.engine.skipped import Skipped
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.signature import Parts, common
from grpo_cli.objective.terms import POLICY
from grpo_cli.records import DecodedChunk, Raw, key_of
from grpo_cli.records.decode.chunks import in_chunks, one_by_one

NUMBERS = (
    *("objective", "loss", "policy", "kl", "clip_fraction", "clip_fraction_low"),
    *("clip_fraction_high", "ratio_mean", "gradient_norm", "denominator", "denominator_of"),
)
"""The totals that a row of the comparison has."""


class BatchSide:
    """One variant's sums over a batch."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.plan = evaluator.plan
        of_one = self.plan.batch if self.plan.batch in ("input", "record") else "input"
        self.totals = Totals(of_one, evaluator.words)
        self.shares = Shares()
        self.dots: dict[tuple[str, str], ExactSum] = {}
        self.parts: dict[str, F64] = {}

    def add(self, breakdown: Breakdown) -> None:
        """Adds a breakdown; ``parts`` are then those of its gradient."""
        self.totals.add(breakdown)
        self.parts = _gradient(breakdown, self.plan.batch)
        self.shares.add(breakdown, self.parts)

    def meet(self, first: BatchSide, chunk: Chunk) -> None:
        """Adds the dot products with the first variant's gradient, exactly over responses."""
        for name, own in self.parts.items():
            for other, gradient in first.parts.items():
                sums = chunk.batch.responses.sum(own * gradient)
                self.dots.setdefault((name, other), ExactSum()).add(sums)

    def merge(self, later: BatchSide) -> None:
        """Adds the sums over records that follow."""
        self.totals.merge(later.totals)
        self.shares.merge(later.shares)
        for pair, dot in later.dots.items():
            self.dots.setdefault(pair, ExactSum()).merge(dot)

    def scale(self, part: str) -> float:
        """What a part of the gradient is still to be multiplied by."""
        return 1.0 / self.totals.count(part)

    def cosine(self, first: BatchSide) -> float | None:
        """The cosine of this gradient with the first one's; None where either is 0."""
        own, other = self._norm, first._norm
        if not own or not other:
            return None
        dot = math.fsum(
            total.value() * self.scale(name) * first.scale(other)
            for (name, other), total in self.dots.items()
        )
        return max(-1.0, min(1.0, dot / own / other))

    @property
    def _norm(self) -> float:
        norm = self.totals.row()["gradient_norm"]
        return float(norm) if isinstance(norm, float) else 0.0

    def result(self, first: BatchSide, batch: Mapping[str, Any]) -> ComparedVariant:
        """The variant's line of the comparison; ``batch`` has the fields that name the batch."""
        total: Mapping[str, Any] = self.totals.row()
        shares: Mapping[str, Any] = self.shares.read(self.scale)
        return ComparedVariant(
            variant=self.plan.variant,
            signature=self.totals.signature(),
            **{name: total[name] for name in NUMBERS},
            cosine=self.cosine(first),
            **shares,
            batch=batch,
        )


class Side:
    """One variant's sums over the data.

    Attributes:
        batches: a batch's key → its sums; only () without fields of ``--batch``.
        names: a batch's key → field → value.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.plan = evaluator.plan
        self.evaluator = evaluator
        self.references = References()
        self.batches: dict[Hashable, BatchSide] = {}
        self.names: dict[Hashable, Mapping[str, Any]] = {}

    def add(self, chunk: Chunk) -> BatchSide:
        """Evaluates a chunk of one batch and adds it up; returns the sums of its batch.

        Raises:
            InputError: where the records lack what the plan needs.
        """
        breakdown = chunk.run(self.evaluator.evaluate)
        self.references.add(chunk, self.plan, breakdown.objective)
        self.references.check()
        key = chunk.keys[0] if chunk.keys else ()
        if chunk.of_batches:
            self.names.setdefault(key, chunk.of_batches[0])
        own = self.of(key)
        own.add(breakdown)
        return own

    def of(self, key: Hashable) -> BatchSide:
        """The sums of a batch."""
        if key not in self.batches:
            self.batches[key] = BatchSide(self.evaluator)
        return self.batches[key]

    def merge(self, later: Side) -> None:
        """Adds the sums over data that follow.

        Raises:
            InputError: where only some of the records have a reference that the plan needs.
        """
        self.references.merge(later.references)
        self.references.check()
        for key, batch in later.batches.items():
            self.of(key).merge(batch)
        self.names = {**later.names, **self.names}

    def forget_gradients(self) -> None:
        """Drops what only a chunk's own evaluation needs."""
        for batch in self.batches.values():
            batch.parts = {}

    @property
    def signed(self) -> Parts:
        """The pieces of the signature; a value that differs between batches reads ``mixed``."""
        return common([batch.totals.signed for batch in self.batches.values()])

    def results(self, first: Side) -> list[ComparedVariant]:
        """The variant's lines of the comparison, one for each batch."""
        return [
            batch.result(first.of(key), self.names.get(key, {}))
            for key, batch in self.batches.items()
        ]


def _gradient(breakdown: Breakdown, batch: str) -> dict[str, F64]:
    """[N] the gradient without the denominators that count, in parts where those differ."""
    if batch == "record":
        return {POLICY: breakdown.gradient}
    responses = breakdown.batch.responses
    return {part.name: part.without_count(responses) for part in breakdown.gradient_parts}


S = TypeVar("S", "Side", BatchStatistics)


def _merged(sums: S, later: S) -> S | InputError:
    try:
        sums.merge(later)
    except InputError as reason:
        return reason
    return sums


@dataclass
class Partial(Generic[S]):
    """What variants come to on a piece of the data.

    Attributes:
        sums: of each variant its sums, or why the data cannot serve it.
        bad: the records that cannot be read.
        read: whether there was any.
    """

    sums: dict[str, S | InputError]
    bad: Skipped
    read: bool = False

    def merge(self, later: Partial[S]) -> None:
        """Adds the piece that follows."""
        self.bad.merge(later.bad)
        self.read |= later.read
        for name, mine in self.sums.items():
            theirs = later.sums[name]
            if isinstance(theirs, InputError) and not isinstance(mine, InputError):
                self.sums[name] = theirs
            elif not isinstance(mine, InputError) and not isinstance(theirs, InputError):
                self.sums[name] = _merged(mine, theirs)


@dataclass(frozen=True)
class Work:
    """What is done with a piece, in any process: the sums of the variants that it can serve.

    Attributes:
        evaluators: the variants; the gradients of the others meet that of the first.
        skip: whether to go on behind a record that cannot be read.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    evaluators: tuple[Evaluator, ...]
    skip: bool
    most_errors: int

    def sums(self, decoded: Iterable[DecodedChunk]) -> Partial[Side]:
        """Every variant on the records."""
        sides: list[Side] = [Side(evaluator) for evaluator in self.evaluators]
        partial = self._partial(sides)
        for chunk in self._chunks(decoded, partial):
            for side in sides:
                if not isinstance(partial.sums[side.plan.variant], InputError):
                    self._add(side, sides[0], chunk, partial)
        for side in sides:
            side.forget_gradients()
        return partial

    def moments(self, decoded: Iterable[DecodedChunk]) -> Partial[BatchStatistics]:
        """The statistics that the variants want of the whole input."""
        names = [evaluator.plan.variant for evaluator in self.evaluators]
        partial = Partial[BatchStatistics](
            {name: BatchStatistics() for name in names}, Skipped(self.most_errors)
        )
        for chunk in self._chunks(decoded, partial):
            for name, evaluator in zip(names, self.evaluators, strict=True):
                moments = partial.sums[name]
                try:
                    if not isinstance(moments, InputError):
                        moments.merge(chunk.run(evaluator.measure))
                except InputError as reason:
                    partial.sums[name] = reason
        return partial

    def _partial(self, sides: Sequence[Side]) -> Partial[Side]:
        return Partial({side.plan.variant: side for side in sides}, Skipped(self.most_errors))

    def _add(self, side: Side, first: Side, chunk: Chunk, partial: Partial[Side]) -> None:
        try:
            own = side.add(chunk)
        except InputError as reason:
            partial.sums[side.plan.variant] = reason
            return
        if not isinstance(partial.sums[first.plan.variant], InputError):
            own.meet(first.of(chunk.keys[0] if chunk.keys else ()), chunk)

    def _chunks(self, decoded: Iterable[DecodedChunk], partial: Partial[Any]) -> Iterator[Chunk]:
        for chunk in without_misnamed(_of_one_batch(decoded), *self.evaluators):
            partial.read = True
            if isinstance(chunk, Chunk):
                yield chunk
                continue
            partial.bad.add(chunk)
            if not self.skip:
                return


def _of_one_batch(decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
    """Chunks whose records are all of one batch."""
    for of_fields, some in groupby(decoded, key=_says_batch):
        if not of_fields:
            yield from chunks(some, with_headers=False)
            continue
        for _, items in groupby(one_by_one(some), key=_batch_key):
            yield from chunks(in_chunks(items), with_headers=False)


def _says_batch(few: DecodedChunk) -> bool:
    """Whether its records say which batch they belong to."""
    return few.keys is None and few.columns is None and any(map(_batch_key, few.items))


def _batch_key(item: Raw | InputError) -> Hashable:
    return key_of(item.batch) if isinstance(item, Raw) else ()
