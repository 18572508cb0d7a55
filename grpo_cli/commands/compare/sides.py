"""Sums of each variant over a piece of the data, batch by batch; they merge."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from grpo_cli.batch import F64, Cut
from grpo_cli.commands.compare.answer import ComparedVariant
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import Accumulator
from grpo_cli.engine.references import References
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.arithmetic.exact_sums import ExactSums
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.signature import Parts, common
from grpo_cli.objective.terms import POLICY
from grpo_cli.terminal.numbers import and_more
from grpo_cli.variants.plan import Plan

NUMBERS = (
    *("objective", "loss", "policy", "kl", "clip_fraction", "clip_fraction_low"),
    *("clip_fraction_high", "ratio_mean", "gradient_norm", "denominator", "denominator_of"),
)
"""The totals that a row of the comparison has."""

_SIGNS = (1.0, -1.0, 0.0)
"""Of an advantage."""


class Shares:
    """Σ|gradient| by length of the response and by sign of the advantage, exactly.

    Memory grows with the number of distinct lengths alone. Where the KL has a denominator of its
    own, its part of a token's gradient and the policy's are counted separately.
    """

    def __init__(self) -> None:
        self._sums = ExactSums[tuple[str, int, float]]()  # by part, length and sign
        self._counts = Counter[int]()  # responses by length

    def add(self, breakdown: Breakdown, cut: Cut, parts: Mapping[str, F64]) -> None:
        """Adds the parts of a gradient, which have different denominators, of some records."""
        responses, own = breakdown.batch.responses, cut.responses
        lengths = responses.lengths[own]
        self._counts.update(lengths.tolist())
        places = [(length, lengths == length) for length in np.unique(lengths).tolist()]
        for name, part in parts.items():
            for sign in _SIGNS:
                found = responses.sum(np.abs(part) * (np.sign(breakdown.advantage) == sign))[own]
                for length, chosen in places:
                    self._sums[name, length, sign].add(found[chosen])

    def merge(self, later: Shares) -> None:
        """Adds those of data that follow."""
        self._sums.merge(later._sums)
        self._counts.update(later._counts)

    def read(self, scale: Callable[[str], float]) -> dict[str, float | None]:
        """The shares of Σ|gradient|; None where there is no gradient.

        The longest quarter of the responses takes 25 % of a gradient that is blind to length;
        among responses of one length that the quarter cuts through, it takes its part of each.

        Args:
            scale: the factor that a part of the gradient still lacks.
        """
        lengths = sorted(self._counts, reverse=True)
        table = {length: np.zeros(len(_SIGNS)) for length in lengths}
        for (name, length, sign), total in sorted(self._sums.items()):
            table[length][_SIGNS.index(sign)] += total.value() * abs(scale(name))
        sums = np.array([*table.values()]).reshape(-1, len(_SIGNS))
        counts = np.array([self._counts[length] for length in lengths])
        tokens = counts * np.array(lengths)
        before = np.cumsum(counts) - counts
        part = np.clip((0.25 * counts.sum() - before) / counts, 0.0, 1.0)  # the longest first

        def share(of: np.floating[Any], whole: np.floating[Any]) -> float | None:
            return float(of) / float(whole) if whole else None

        return {
            "longest_quarter": share((part[:, None] * sums).sum(), sums.sum()),
            "longest_quarter_tokens": share((part * tokens).sum(), tokens.sum()),
            "positive_advantage": share(sums[:, 0].sum(), sums.sum()),
            "negative_advantage": share(sums[:, 1].sum(), sums.sum()),
        }


class BatchSide:
    """One variant's sums over a batch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.totals = Totals(plan.batch if plan.batch in ("input", "record") else "input")
        self.shares = Shares()
        self.dots = ExactSums[tuple[str, str]]()

    def merge(self, later: BatchSide) -> None:
        """Adds the sums over records that follow."""
        self.totals.merge(later.totals)
        self.shares.merge(later.shares)
        self.dots.merge(later.dots)

    def scale(self, part: str) -> float:
        """The factor that a part of the gradient still lacks."""
        return 1.0 / self.totals.count(part)

    def cosine(self, first: BatchSide) -> float | None:
        """The cosine of this gradient with the first one's; None where either is 0."""
        norms = [side.totals.row()["gradient_norm"] for side in (self, first)]
        own, other = (norm if isinstance(norm, float) else 0.0 for norm in norms)
        if not own or not other:
            return None
        dot = math.fsum(
            total.value() * self.scale(mine) * first.scale(theirs)
            for (mine, theirs), total in self.dots.items()
        )
        return max(-1.0, min(1.0, dot / own / other))

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
        self.plan, self.evaluator = evaluator.plan, evaluator
        self.references = References()
        self.batches: dict[Hashable, BatchSide] = {}
        self.names: dict[Hashable, Mapping[str, Any]] = {}

    def add(self, chunk: Chunk) -> Mapping[str, F64]:
        """Adds a chunk; returns [N] its gradient, without the denominators that count.

        It is in parts where those differ.

        Raises:
            InputError: where the records lack what the plan needs.
        """
        breakdown = chunk.run(self.evaluator.evaluate)
        self.references.add(chunk, self.plan, breakdown.objective)
        self.references.check()
        parts = {POLICY: breakdown.gradient}
        if self.plan.batch != "record":
            responses = breakdown.batch.responses
            parts = {one.name: one.without_count(responses) for one in breakdown.gradient_parts}
        for key, cut in chunk.cuts:
            if chunk.of_batches:
                self.names.setdefault(key, chunk.of_batches[cut.records.start])
            self.of(key).totals.add(breakdown, cut)
            self.of(key).shares.add(breakdown, cut, parts)
        return parts

    def meet(self, own: Mapping[str, F64], first: Mapping[str, F64], chunk: Chunk) -> None:
        """Adds the dot products with the first variant's gradient, exactly over responses."""
        for name, part in own.items():
            for other, gradient in first.items():
                sums = chunk.batch.responses.sum(part * gradient)
                for key, cut in chunk.cuts:
                    self.of(key).dots[name, other].add(sums[cut.responses])

    def of(self, key: Hashable) -> BatchSide:
        """The sums of a batch."""
        return self.batches.setdefault(key, BatchSide(self.plan))

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


S = TypeVar("S", Side, BatchStatistics)


class VariantSums(Accumulator[None], Generic[S]):
    """Sums of each variant; a variant that the data cannot serve is set aside with the reason.

    Attributes:
        evaluators: the variants.
        sums: of each variant its sums, or why the data cannot serve it.
    """

    settings: ClassVar[tuple[str, ...]] = ("evaluators",)

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self.evaluators = evaluators
        self.sums: dict[str, S | InputError] = {}

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those of all variants."""
        return tuple(one.plan for one in self.evaluators)

    def evaluate(self, chunk: Chunk) -> None:
        """Refuses records that have a column which a variant lacks under another name."""
        if chunk.batch.misnamed:
            for evaluator in self.evaluators:
                evaluator.refuse_misnamed(chunk)

    def each(self, add: Callable[[str, S], None]) -> None:
        """Adds to the sums of each variant; sets it aside where the data cannot serve it."""
        for name, sums in self.sums.items():
            if not isinstance(sums, InputError):
                try:
                    add(name, sums)
                except InputError as reason:
                    self.sums[name] = reason

    def merge(self, later: VariantSums[S]) -> None:
        """Adds the sums of records that follow."""

        def add(name: str, mine: S) -> None:
            sums = later.sums[name]
            if isinstance(sums, InputError):
                raise sums
            mine.merge(sums)

        self.each(add)


class VariantStatistics(VariantSums[BatchStatistics]):
    """The statistics that variants need of whole batches."""

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        super().__init__(evaluators)
        self.sums = {one.plan.variant: BatchStatistics() for one in evaluators}

    def add(self, chunk: Chunk, found: None) -> None:
        """Adds a chunk's part of the statistics."""
        del found
        measure = {one.plan.variant: one.measure for one in self.evaluators}
        self.each(lambda name, statistics: statistics.merge(chunk.run(measure[name])))


class Sides(VariantSums[Side]):
    """The sums of each variant, and the dot products of its gradient with the first one's.

    Attributes:
        first: the hyperparameters of the first record; None before there is one.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        super().__init__(evaluators)
        self.sums = {one.plan.variant: Side(one) for one in evaluators}
        self.first: Mapping[str, Value] | None = None

    def add(self, chunk: Chunk, found: None) -> None:
        """Evaluates each variant on a chunk; one at a time, since breakdowns are large."""
        del found
        self.first = chunk.settings if self.first is None else self.first
        first: Mapping[str, F64] | None = None

        def add(name: str, side: Side) -> None:
            nonlocal first
            gradient = side.add(chunk)
            if name == self.evaluators[0].plan.variant:
                first = gradient
            if first is not None:
                side.meet(gradient, first, chunk)

        self.each(add)

    def merge(self, later: VariantSums[Side]) -> None:
        """Adds the sums of records that follow."""
        super().merge(later)
        if self.first is None and isinstance(later, Sides):
            self.first = later.first

    @property
    def unused_beta(self) -> dict[str, None]:
        """The note on variants without a KL for the β of the records; none for most."""
        names = [one.variant for one in self.plans if one.unused_beta(self.first or {})]
        if not names or self.first is None:
            return {}
        beta = f"the records' beta {self.first['beta']}"
        without = and_more(names, _NAMED)
        return {f"{beta} is not used by variants without a KL: {without}": None}


_NAMED = 4
"""Variants that a note names."""
