"""The batch's numbers as sums that merge: one process or many fold to the same bits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from grpo_cli.batch import F64, Cut
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.rows.fields import NAMED, TOTAL
from grpo_cli.engine.rows.source import SIZED
from grpo_cli.objective.arithmetic.exact_sums import ExactSum, ExactSums, added
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.signature import Parts, common, line
from grpo_cli.objective.terms import ENTROPY, KL, POLICY


@dataclass
class Totals:
    """What a batch adds up to, or a micro-batch of it, or the mean over several batches.

    Of one batch, a term's sum is divided by what its weights count over all records, also over
    those whose coefficient is 0 (``counted``). With ``batch`` "record", or the fields of
    ``--batch``, the totals are means over the batches' own values; ``units`` counts those that
    fields name. ``terms`` are a term's sums by coefficient. ``names_turns`` says whether records
    name turns or trajectories.
    """

    batch: str
    records: int = 0
    groups: int = 0
    responses: int = 0
    tokens: int = 0
    clipped_low: int = 0
    clipped_high: int = 0
    dead_groups: int = 0
    empty_responses: int = 0
    on_policy: int = 0
    ratio_min: float = math.inf
    ratio_max: float = -math.inf
    ratio: ExactSum = field(default_factory=ExactSum)
    terms: dict[str, ExactSums[float]] = field(default_factory=partial(defaultdict, ExactSums))
    counted: dict[str, float] = field(default_factory=partial(defaultdict, float))
    products: ExactSums[tuple[str, str]] = field(default_factory=ExactSums)
    counts: bool = True
    divisors: set[float] = field(default_factory=set)
    of: set[str] = field(default_factory=set)
    kl_known: bool = True
    signed: Parts = ()
    units: int = 0
    turns: int = 0
    trajectories: int = 0
    names_turns: bool = False
    _parts: dict[str, float] | None = field(default=None, init=False, repr=False, compare=False)

    COUNTS: ClassVar[tuple[str, ...]] = (
        *("records", "groups", "responses", "tokens", "turns", "trajectories"),
        *("clipped_low", "clipped_high", "dead_groups", "empty_responses", "on_policy"),
    )

    def add(self, breakdown: Breakdown, some: Cut | None = None) -> None:
        """Adds the records of a breakdown, or some of them, such as those of a step."""
        cut = breakdown.batch.whole if some is None else some
        self._add_terms(breakdown, cut)
        weights, lengths = breakdown.policy.weights, breakdown.batch.responses.lengths
        clip, ratio = breakdown.clip[cut.tokens], breakdown.ratio[cut.tokens]
        divisor = weights.divisor
        each = divisor[cut.responses] if isinstance(divisor, np.ndarray) else [divisor]
        records, groups, responses, tokens = cut.counts
        found = Totals(
            self.batch,
            records=records,
            groups=groups,
            responses=responses,
            tokens=tokens,
            clipped_low=int(np.count_nonzero(clip < 0)),
            clipped_high=int(np.count_nonzero(clip > 0)),
            dead_groups=int(breakdown.dead_groups[cut.records].sum()),
            empty_responses=int(np.count_nonzero(lengths[cut.responses] == 0)),
            on_policy=int(np.count_nonzero(breakdown.on_policy[cut.records])),
            kl_known=not breakdown.kl_unknown,
            counts=weights.counts is not None,
            divisors={*map(float, each)},
            of={weights.of},
            signed=breakdown.objective.parts_of(cut.records),
            turns=int(breakdown.turn_counts[cut.responses].sum()),
            trajectories=int(breakdown.trajectory_firsts[cut.responses].sum()),
            names_turns=breakdown.batch.names_turns,
        )
        if len(ratio):
            found.ratio_min, found.ratio_max = float(ratio.min()), float(ratio.max())
            found.ratio.add(breakdown.ratio_sums[cut.responses])
        self._add_facts(found)

    def _add_terms(self, breakdown: Breakdown, cut: Cut) -> None:
        """Adds what J and its gradient are made of."""
        if self.batch == "record":
            for term in breakdown.terms:
                own = term.coefficient
                own = own[cut.records] if isinstance(own, np.ndarray) else own
                self._add_term(term.name, own, breakdown.record_values[term.name][cut.records])
            self.products[POLICY, POLICY].add(breakdown.record_gradient_squares[cut.records])
            return
        for term in breakdown.terms:
            own = term.coefficient
            if isinstance(own, np.ndarray):
                own = np.repeat(own[cut.records], breakdown.batch.records.lengths[cut.records])
            self._add_term(term.name, own, breakdown.weighted[term.name][cut.responses])
        start, stop = cut.responses.start, cut.responses.stop
        for name, before in breakdown.counted_before.items():
            self.counted[name] += float(before[stop] - before[start])
        for name, other, product in breakdown.products:
            self.products[name, other].add(product[cut.responses])

    def _add_term(self, name: str, coefficient: float | F64, values: F64) -> None:
        """Adds values of a term that this coefficient multiplies, or each its own."""
        if not isinstance(coefficient, np.ndarray):
            self.terms[name][coefficient].add(values)
            return
        found, index = np.unique(coefficient, return_inverse=True)
        ordered = values[np.argsort(index, kind="stable")]
        ends = np.cumsum(np.bincount(index)).tolist()
        sums = self.terms[name]
        for own, start, end in zip(found.tolist(), [0, *ends], ends, strict=False):
            sums[own].add(ordered[start:end])

    def add_batch(self, other: Totals) -> None:
        """Adds the totals of one more batch to this mean of batches."""
        self.units += 1
        self._add_facts(other)
        for name, sums in other.terms.items():
            for coefficient, part in sums.items():
                self.terms[name][coefficient].add(np.array([part.value() / other.count(name)]))
        self.products[POLICY, POLICY].add(np.array([other.gradient_norm**2]))

    def merge(self, other: Totals) -> None:
        """Adds the totals of other records."""
        self.units += other.units
        self._add_facts(other)
        for name, counted in other.counted.items():
            self.counted[name] += counted
        for name, sums in other.terms.items():
            self.terms[name].merge(sums)
        self.products.merge(other.products)

    def _add_facts(self, other: Totals) -> None:
        """Adds what is neither a term's nor a product; what differs in ``signed`` is ``mixed``."""
        self._parts = None
        for name in self.COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ratio.merge(other.ratio)
        self.ratio_min = min(self.ratio_min, other.ratio_min)
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.divisors |= other.divisors
        self.kl_known &= other.kl_known
        self.names_turns |= other.names_turns
        self.counts &= other.counts
        self.of |= other.of
        if self.signed and other.signed and self.signed != other.signed:
            self.signed = common([self.signed, other.signed])
        else:
            self.signed = other.signed or self.signed

    def count(self, term: str) -> float:
        """The denominator of a term that counts, over the batch; 1 where nothing is counted."""
        if self.batch != "input":
            return max(self.averaged, 1)
        return self.counted.get(term) or 1.0

    @property
    def averaged(self) -> int:
        """Over how many batches the totals are means."""
        return self.records if self.batch == "record" else self.units

    def value(self, term: str) -> float:
        """Σ w·value of a term; 0 where there is none."""
        each = [part.value() for part in self.sums(term).values()]
        return (each[0] if len(each) == 1 else added(each)) / self.count(term)

    def part(self, term: str) -> float:
        """What a term adds to J, coefficient · Σ w·value; 0 where there is none."""
        sums = self.sums(term)
        if len(sums) == 1:
            (coefficient,) = sums
            return coefficient * self.value(term) if coefficient else 0.0
        parts = [factor * part.value() for factor, part in sums.items() if factor]
        return math.fsum(parts) / self.count(term)

    def parts(self) -> dict[str, float]:
        """What each term adds to J, by its name; a row asks for it many times."""
        if self._parts is None:
            names = [name for name in (POLICY, KL, ENTROPY) if self.sums(name)]
            self._parts = {name: self.part(name) for name in names}
        return self._parts

    def has(self, term: str) -> bool:
        """Whether a term counts in J: the policy, and others whose coefficient is not 0."""
        return term == POLICY or any(self.sums(term))

    def sums(self, term: str) -> Mapping[float, ExactSum]:
        """A term's sums by their coefficients; none where no record has the term."""
        return self.terms.get(term, {})

    @property
    def objective(self) -> float:
        """J."""
        return sum(self.parts().values())

    def row(self, *, names_turns: bool | None = None) -> dict[str, Any]:
        """The totals by name, in the order in which they are printed.

        Args:
            names_turns: whether trajectories and turns are counted; None: where records have them.
        """
        counted = self.names_turns if names_turns is None else names_turns
        return {field.name: field.read(self) for field in TOTAL} | (
            {name: getattr(self, name) for name in NAMED} if counted else {}
        )

    @property
    def gradient_norm(self) -> float:
        """‖∂J/∂log π_θ‖ over all tokens."""
        if self.products.keys() == {(POLICY, POLICY)}:
            return math.sqrt(self.products[POLICY, POLICY].value()) / self.count(POLICY)
        square = 0.0
        for first, second in sorted(self.products, key=lambda pair: pair[0] != pair[1]):
            size = self.count(first) * self.count(second)
            times = 1.0 if first == second else 2.0
            square += times * self.products[first, second].value() / size
        return math.sqrt(max(square, 0.0))

    @property
    def denominator(self) -> float | int | None:
        """What the policy sum is divided by; None where the records' constants differ."""
        if self.batch != "input":
            return self.averaged
        if len(self.divisors) != 1:
            return None  # the records' own constants differ
        (divisor,) = self.divisors
        value = divisor * (self.counted[POLICY] if self.counts else 1.0)
        return int(value) if value.is_integer() else value

    @property
    def denominator_of(self) -> str:
        """The denominator in words; ``or`` where it differs between records."""
        words = " or ".join(sorted(self.of))
        if self.batch == "input":
            return words
        return f"{'records' if self.batch == 'record' else 'batches'}{_OF_MEANS}{words}"

    def signature(self) -> str:
        """The signature of the batch."""
        return line(self.signed)


_OF_MEANS = ", of means over "


def is_mean(total: Mapping[str, Any]) -> bool:
    """Whether totals by name are the mean of several batches, as their denominator says."""
    return total["records"] > 1 and _OF_MEANS in total["denominator_of"]


class Sizes(ExactSums[tuple[Hashable, str]]):
    """Σ |gradient| and Σ |contribution| over the tokens of each batch, by its key and name."""

    def add(self, chunk: Chunk, breakdown: Breakdown) -> None:
        """Adds the tokens of a chunk to their batches."""
        keys, index = chunk.batches
        owner = np.repeat(index, breakdown.batch.records.lengths)
        for name, sums in _response_sizes(breakdown).items():
            for at, key in enumerate(keys):
                self[key, name].add(sums[owner == at])

    def read(self, key: Hashable) -> list[float]:
        """[2] those of a batch; 0 where none of its records was evaluated."""
        return [self.get((key, name), ExactSum()).value() for name in SIZED]


def record_sizes(breakdown: Breakdown) -> F64:
    """[M, 2] those of each record alone."""
    found = _response_sizes(breakdown).values()
    return np.array([breakdown.batch.records.sum(sums) for sums in found]).T


def _response_sizes(breakdown: Breakdown) -> dict[str, F64]:
    """[R] by name, those of each response."""
    sum_of = breakdown.batch.responses.sum
    return {name: sum_of(np.abs(getattr(breakdown, name))) for name in SIZED}
