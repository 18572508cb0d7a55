"""What each variant comes to on a piece of the data, and how pieces merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grpo_cli.batch import F64
from grpo_cli.commands.compare.shares import Shares
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator, without_misnamed
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.skipped import Skipped
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.objective.terms import POLICY
from grpo_cli.records import DecodedChunk

NUMBERS = (
    *("objective", "loss", "policy", "kl", "clip_fraction", "clip_fraction_low"),
    *("clip_fraction_high", "ratio_mean", "gradient_norm"),
)
"""The totals that a row of the comparison has."""


class Side:
    """One variant's sums over the data."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.plan = evaluator.plan
        self.evaluator = evaluator
        self.totals = Totals(self.plan.batch, evaluator.words)
        self.shares = Shares()
        self.dots: dict[tuple[str, str], ExactSum] = {}
        self.parts: dict[str, F64] = {}

    def add(self, chunk: Chunk) -> None:
        """Evaluates a chunk and adds it up; ``parts`` are then those of its gradient.

        Raises:
            InputError: where the records lack what the plan needs.
        """
        breakdown = chunk.run(self.evaluator.evaluate)
        self.totals.add(breakdown)
        self.parts = _gradient(breakdown, self.plan.batch)
        self.shares.add(breakdown, self.parts)

    def meet(self, first: Side, chunk: Chunk) -> None:
        """Adds the dot products with the first variant's gradient, exactly over responses."""
        for name, own in self.parts.items():
            for other, gradient in first.parts.items():
                sums = chunk.batch.responses.sum(own * gradient)
                self.dots.setdefault((name, other), ExactSum()).add(sums)

    def merge(self, later: Side) -> None:
        """Adds the sums over data that follow."""
        self.totals.merge(later.totals)
        self.shares.merge(later.shares)
        for pair, dot in later.dots.items():
            self.dots.setdefault(pair, ExactSum()).merge(dot)

    def scale(self, part: str) -> float:
        """What a part of the gradient is still to be multiplied by."""
        return 1.0 / self.totals.count(part)

    def cosine(self, first: Side) -> float | None:
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

    def row(self, first: Side) -> dict[str, Any]:
        """The variant's line of the comparison."""
        total = self.totals.row()
        return {
            "variant": self.plan.variant,
            "signature": self.totals.signature(),
            **{name: total[name] for name in NUMBERS},
            "cosine": self.cosine(first),
            **self.shares.read(self.scale),
            "denominator": total["denominator"],
            "denominator_of": total["denominator_of"],
        }


def _gradient(breakdown: Breakdown, batch: str) -> dict[str, F64]:
    """[N] the gradient without the denominators that count, in parts where those differ."""
    if batch == "record":
        return {POLICY: breakdown.gradient}
    responses = breakdown.batch.responses
    return {part.name: part.without_count(responses) for part in breakdown.gradient_parts}


S = TypeVar("S", "Side", ExactMoments)


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
                mine.merge(theirs)


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
            side.parts = {}
        return partial

    def moments(self, decoded: Iterable[DecodedChunk]) -> Partial[ExactMoments]:
        """The statistics that the variants want of the whole input."""
        names = [evaluator.plan.variant for evaluator in self.evaluators]
        partial = Partial[ExactMoments](
            {name: ExactMoments() for name in names}, Skipped(self.most_errors)
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
            side.add(chunk)
        except InputError as reason:
            partial.sums[side.plan.variant] = reason
            return
        if not isinstance(partial.sums[first.plan.variant], InputError):
            side.meet(first, chunk)

    def _chunks(self, decoded: Iterable[DecodedChunk], partial: Partial[Any]) -> Iterator[Chunk]:
        found = chunks(decoded, with_headers=False)
        for chunk in without_misnamed(found, *self.evaluators):
            partial.read = True
            if isinstance(chunk, Chunk):
                yield chunk
                continue
            partial.bad.add(chunk)
            if not self.skip:
                return
