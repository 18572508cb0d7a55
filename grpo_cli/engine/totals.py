"""The batch's numbers as sums that merge: one process or many fold to the same bits."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from grpo_cli.batch import F64, Cut
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.rows.fields import NAMED, TOTAL
from grpo_cli.engine.rows.source import SIZED
from grpo_cli.objective.arithmetic.exact_sums import ExactSum, added
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.signature import Parts, common, line
from grpo_cli.objective.summary import Summary
from grpo_cli.objective.terms import ENTROPY, KL, POLICY


@dataclass
class TermTotal:
    """One term's sums over a batch: those of the records with the same coefficient together.

    ``counted`` is of all records, also of those whose coefficient is 0.
    """

    sums: dict[float, ExactSum] = field(default_factory=dict)
    counted: float = 0.0

    def add(self, coefficient: float | F64, values: F64) -> None:
        """Adds values that this coefficient multiplies, or each its own."""
        if not isinstance(coefficient, np.ndarray):
            self.sums.setdefault(coefficient, ExactSum()).add(values)
            return
        found, index = np.unique(coefficient, return_inverse=True)
        ordered = values[np.argsort(index, kind="stable")]
        ends = np.cumsum(np.bincount(index)).tolist()
        for own, start, end in zip(found.tolist(), [0, *ends], ends, strict=False):
            self.sums.setdefault(own, ExactSum()).add(ordered[start:end])

    def merge(self, other: TermTotal) -> None:
        """Adds the sums of other records."""
        self.counted += other.counted
        for coefficient, part in other.sums.items():
            self.sums.setdefault(coefficient, ExactSum()).merge(part)

    def value(self, count: float) -> float:
        """Σ w·value over the batch."""
        return added([part.value() for part in self.sums.values()]) / count

    def part(self, count: float) -> float:
        """Its part of J: coefficient · Σ w·value."""
        if len(self.sums) == 1:
            (coefficient,) = self.sums
            return coefficient * self.value(count) if coefficient else 0.0
        parts = [factor * part.value() for factor, part in self.sums.items() if factor]
        return math.fsum(parts) / count


@dataclass
class Totals:
    """What a batch adds up to, or a micro-batch of it, or the mean over several batches.

    Of one batch, a term's sum is divided by what its weights count over all records. With ``batch``
    "record", or the fields of ``--batch``, the totals are means over the batches' own values;
    ``units`` counts those that fields name. ``names_turns`` says whether records name turns or
    trajectories.
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
    terms: dict[str, TermTotal] = field(default_factory=dict)
    products: dict[tuple[str, str], ExactSum] = field(default_factory=dict)
    counts: bool = True
    divisors: set[float] = field(default_factory=set)
    of: set[str] = field(default_factory=set)
    kl_known: bool = True
    signed: Parts = ()
    units: int = 0
    turns: int = 0
    trajectories: int = 0
    names_turns: bool = False

    def __post_init__(self) -> None:
        self._term(POLICY)

    COUNTS: ClassVar[tuple[str, ...]] = (
        *("records", "groups", "responses", "tokens", "turns", "trajectories"),
        *("clipped_low", "clipped_high", "dead_groups", "empty_responses", "on_policy"),
    )

    def add(self, breakdown: Breakdown) -> None:
        """Adds the records of a breakdown."""
        self.add_some(Summary(breakdown), breakdown.batch.whole)

    def add_some(self, summary: Summary, cut: Cut) -> None:
        """Adds some of the records of a breakdown, such as those of a step."""
        self._add_terms(summary, cut)
        breakdown, weights = summary.breakdown, summary.breakdown.policy.weights
        records, groups, responses, tokens = cut.counts
        self.records += records
        self.groups += groups
        self.responses += responses
        self.tokens += tokens
        self.turns += int(summary.turn_counts[cut.responses].sum())
        self.trajectories += int(summary.trajectory_firsts[cut.responses].sum())
        self.names_turns |= breakdown.batch.names_turns
        clip = breakdown.clip[cut.tokens]
        self.clipped_low += int(np.count_nonzero(clip < 0))
        self.clipped_high += int(np.count_nonzero(clip > 0))
        self.dead_groups += int(summary.dead_groups[cut.records].sum())
        self.empty_responses += int(np.count_nonzero(summary.responses.lengths[cut.responses] == 0))
        self.on_policy += int(np.count_nonzero(summary.on_policy[cut.records]))
        ratio = breakdown.ratio[cut.tokens]
        if len(ratio):
            self.ratio_min = min(self.ratio_min, float(ratio.min()))
            self.ratio_max = max(self.ratio_max, float(ratio.max()))
            self.ratio.add(summary.ratio_sums[cut.responses])
        self.of.add(weights.of)
        self.counts &= weights.counts is not None
        divisor = weights.divisor
        each = divisor[cut.responses] if isinstance(divisor, np.ndarray) else [divisor]
        self.divisors.update(map(float, each))
        self.kl_known &= not breakdown.kl_unknown
        self._sign(breakdown.objective.parts_of(cut.records))

    def _add_terms(self, summary: Summary, cut: Cut) -> None:
        breakdown = summary.breakdown
        if self.batch == "record":
            for term, values in zip(breakdown.terms, summary.record_values, strict=True):
                own = term.coefficient
                own = own[cut.records] if isinstance(own, np.ndarray) else own
                self._term(term.name).add(own, values[cut.records])
            squares = self.products.setdefault((POLICY, POLICY), ExactSum())
            squares.add(summary.record_gradient_squares[cut.records])
            return
        for term in breakdown.terms:
            total, own = self._term(term.name), term.coefficient
            if isinstance(own, np.ndarray):
                own = np.repeat(own[cut.records], summary.records.lengths[cut.records])
            total.add(own, term.weighted_of(cut.responses))
            total.counted += term.weights.counted(cut.responses)
        for name, weights in breakdown.absent.items():
            self._term(name).counted += weights.counted(cut.responses)
        for name, other, product in summary.products:
            self.products.setdefault((name, other), ExactSum()).add(product[cut.responses])

    def add_batch(self, other: Totals) -> None:
        """Adds the totals of one more batch to those of which these are the mean."""
        self.units += 1
        self._add_counts_of(other)
        self._add_facts_of(other)
        for name, term in other.terms.items():
            for coefficient, part in term.sums.items():
                value = np.array([part.value() / other.count(name)])
                self._term(name).add(coefficient, value)
        squares = self.products.setdefault((POLICY, POLICY), ExactSum())
        squares.add(np.array([other.gradient_norm**2]))

    def merge(self, other: Totals) -> None:
        """Adds the totals of other records."""
        self._add_counts_of(other)
        self.units += other.units
        for name, term in other.terms.items():
            self._term(name).merge(term)
        for pair, product in other.products.items():
            self.products.setdefault(pair, ExactSum()).merge(product)
        self._add_facts_of(other)

    def _add_counts_of(self, other: Totals) -> None:
        for name in self.COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def _term(self, name: str) -> TermTotal:
        return self.terms.setdefault(name, TermTotal())

    def _add_facts_of(self, other: Totals) -> None:
        self.ratio.merge(other.ratio)
        self.ratio_min = min(self.ratio_min, other.ratio_min)
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.divisors |= other.divisors
        self.kl_known &= other.kl_known
        self.names_turns |= other.names_turns
        self.counts &= other.counts
        self.of |= other.of
        self._sign(other.signed)

    def _sign(self, parts: Parts) -> None:
        """Adds what was evaluated; a value that differs between records reads ``mixed``."""
        known = {one: None for one in (self.signed, parts) if one}
        self.signed = common(known) if len(known) > 1 else parts or self.signed

    def count(self, term: str) -> float:
        """The denominator of a term that counts, over the batch; 1 where nothing is counted."""
        if self.batch != "input":
            return max(self.averaged, 1)
        return (self.terms[term].counted if term in self.terms else 0.0) or 1.0

    @property
    def averaged(self) -> int:
        """Over how many batches the totals are means."""
        return self.records if self.batch == "record" else self.units

    def value(self, term: str) -> float:
        """Σ w·value of a term; 0 where there is none."""
        return self.terms[term].value(self.count(term)) if term in self.terms else 0.0

    def part(self, term: str) -> float:
        """What a term adds to J; 0 where there is none."""
        return self.terms[term].part(self.count(term)) if term in self.terms else 0.0

    def parts(self) -> dict[str, float]:
        """What each term adds to J, by its name."""
        return {name: self.part(name) for name in (POLICY, KL, ENTROPY) if self.sums(name)}

    def has(self, term: str) -> bool:
        """Whether a term counts in J: the policy, and others whose coefficient is not 0."""
        return term == POLICY or any(self.sums(term))

    def sums(self, term: str) -> Mapping[float, ExactSum]:
        """A term's sums by their coefficients; none where no record has the term."""
        return self.terms[term].sums if term in self.terms else {}

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
        value = divisor * (self.terms[POLICY].counted if self.counts else 1.0)
        return int(value) if value.is_integer() else value

    @property
    def denominator_of(self) -> str:
        """The denominator in words; ``or`` where it differs between records."""
        words = " or ".join(sorted(self.of))
        if self.batch == "input":
            return words
        return f"{'records' if self.batch == 'record' else 'batches'}, of means over {words}"

    def signature(self) -> str:
        """The signature of the batch."""
        return line(self.signed)


@dataclass
class Sizes:
    """Σ |gradient| and Σ |contribution| over the tokens of each batch, by its key; they merge."""

    sums: dict[tuple[Hashable, str], ExactSum] = field(default_factory=dict)

    def add(self, chunk: Chunk, breakdown: Breakdown) -> None:
        """Adds the tokens of a chunk to their batches."""
        keys, index = chunk.batches
        owner = np.repeat(index, breakdown.batch.records.lengths)
        for name, sums in _response_sizes(breakdown).items():
            for at, key in enumerate(keys):
                self.sums.setdefault((key, name), ExactSum()).add(sums[owner == at])

    def merge(self, other: Sizes) -> None:
        """Adds the tokens of other records."""
        for key, size in other.sums.items():
            self.sums.setdefault(key, ExactSum()).merge(size)

    def read(self, key: Hashable) -> list[float]:
        """[2] those of a batch; 0 where none of its records was evaluated."""
        return [self.sums.get((key, name), ExactSum()).value() for name in SIZED]


def record_sizes(breakdown: Breakdown) -> F64:
    """[M, 2] those of each record alone."""
    found = _response_sizes(breakdown).values()
    return np.array([breakdown.batch.records.sum(sums) for sums in found]).T


def _response_sizes(breakdown: Breakdown) -> dict[str, F64]:
    """[R] by name, those of each response."""
    sum_of = breakdown.batch.responses.sum
    return {name: sum_of(np.abs(getattr(breakdown, name))) for name in SIZED}
