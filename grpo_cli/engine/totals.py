"""The batch's numbers as sums that merge: one process or many fold to the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.breakdown import Breakdown, Term
from grpo_cli.objective.signature import Parts, common, line
from grpo_cli.objective.summary import Summary

_COUNTS = (
    "records",
    "groups",
    "responses",
    "tokens",
    "clipped_low",
    "clipped_high",
    "dead_groups",
    "empty_responses",
    "on_policy",
    "counted",
    "kl_counted",
    "bonus_counted",
)
_SUMS = (
    "policy",
    "ratio",
    "squares",
    "cross",
    "kl_squares",
)


@dataclass
class Totals:
    """What a batch adds up to. ``batch`` is "input" or "record", as in DESIGN section 4.

    Over the input, a term's sum is divided by what its weights count over all records; record by
    record, the totals are means over the records' own values.
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
    policy: ExactSum = field(default_factory=ExactSum)
    kl: dict[float, ExactSum] = field(default_factory=dict)
    ratio: ExactSum = field(default_factory=ExactSum)
    squares: ExactSum = field(default_factory=ExactSum)
    cross: ExactSum = field(default_factory=ExactSum)
    kl_squares: ExactSum = field(default_factory=ExactSum)
    entropy: dict[float, ExactSum] = field(default_factory=dict)
    counted: float = 0.0
    kl_counted: float = 0.0
    bonus_counted: float = 0.0
    counts: bool = True
    divisors: set[float] = field(default_factory=set)
    of: str = ""
    kl_known: bool = True
    signatures: dict[str, Parts] = field(default_factory=dict)

    # ---- adding -------------------------------------------------------------------------------

    def add(self, breakdown: Breakdown) -> None:
        """Adds the records of a breakdown."""
        summary = Summary(breakdown)
        self._add_counts(breakdown, summary)
        self._add_ratios(breakdown, summary)
        if self.batch == "record":
            self._add_record_means(breakdown, summary)
        else:
            self._add_terms(breakdown, summary)
        self._add_facts(breakdown)

    def _add_counts(self, breakdown: Breakdown, summary: Summary) -> None:
        batch = breakdown.batch
        self.records += batch.records.count
        self.groups += batch.group_count
        self.responses += batch.responses.count
        self.tokens += batch.responses.total
        self.clipped_low += int(np.count_nonzero(breakdown.clip < 0))
        self.clipped_high += int(np.count_nonzero(breakdown.clip > 0))
        self.dead_groups += int(summary.dead_groups.sum())
        self.empty_responses += int(np.count_nonzero(batch.responses.lengths == 0))
        self.on_policy += summary.on_policy

    def _add_ratios(self, breakdown: Breakdown, summary: Summary) -> None:
        if not breakdown.batch.responses.total:
            return
        self.ratio_min = min(self.ratio_min, float(breakdown.ratio.min()))
        self.ratio_max = max(self.ratio_max, float(breakdown.ratio.max()))
        self.ratio.add(summary.ratio_sums)

    def _add_record_means(self, breakdown: Breakdown, summary: Summary) -> None:
        self.policy.add(breakdown.record_policy)
        self._beta_sum(breakdown.beta).add(breakdown.record_kl)
        if breakdown.bonus is not None:
            self._coef_sum(breakdown).add(breakdown.record_entropy)
        self.squares.add(summary.record_gradient_squares)

    def _add_terms(self, breakdown: Breakdown, summary: Summary) -> None:
        self.policy.add(breakdown.policy.weighted)
        self.counted += _counted(breakdown.policy)
        if breakdown.bonus is not None:
            self._coef_sum(breakdown).add(breakdown.bonus.weighted)
            self.bonus_counted += _counted(breakdown.bonus)
        if breakdown.penalty is not None:
            self.kl_counted += _counted(breakdown.penalty)
            self._beta_sum(breakdown.beta).add(breakdown.penalty.weighted)
        if breakdown.shared_weights:
            self.squares.add(summary.gradient_squares)
        elif breakdown.penalty is not None:
            self._add_cross(breakdown, breakdown.penalty)

    def _add_cross(self, breakdown: Breakdown, penalty: Term) -> None:
        """The parts of ‖g_policy/D − β·g_kl/D′‖², each with its own denominator."""
        spread = breakdown.batch.responses
        policy = np.repeat(breakdown.policy.factor, spread.lengths) * breakdown.policy.slope
        kl = np.repeat(penalty.factor, spread.lengths) * (breakdown.beta * penalty.slope)
        self.squares.add(spread.sum(policy * policy))
        self.cross.add(spread.sum(policy * kl))
        self.kl_squares.add(spread.sum(kl * kl))

    def _add_facts(self, breakdown: Breakdown) -> None:
        weights = breakdown.policy.weights
        self.of = weights.of
        self.counts &= weights.counts is not None
        self.divisors.add(float(weights.divisor))
        objective = breakdown.objective
        self.kl_known &= breakdown.kl is not None or not objective.has_kl
        self.signatures.setdefault(objective.signature, objective.parts)

    # ---- merging ------------------------------------------------------------------------------

    def merge(self, other: Totals) -> None:
        """Adds the totals of other records."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _SUMS:
            getattr(self, name).merge(getattr(other, name))
        self.ratio_min = min(self.ratio_min, other.ratio_min)
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        for beta, part in other.kl.items():
            self._beta_sum(beta).merge(part)
        for coef, part in other.entropy.items():
            self.entropy.setdefault(coef, ExactSum()).merge(part)
        self.divisors |= other.divisors
        self.kl_known &= other.kl_known
        self.counts &= other.counts
        self.of = self.of or other.of
        for signature, parts in other.signatures.items():
            self.signatures.setdefault(signature, parts)

    # ---- reading ------------------------------------------------------------------------------

    def _count(self, counted: float) -> float:
        """The denominator that counts, over the batch; 1 where nothing is counted."""
        return max(self.records, 1) if self.batch == "record" else counted or 1.0

    def row(self) -> dict[str, object]:
        """The totals by name, in the order of ``TOTAL_FIELDS``."""
        policy = self.policy.value() / self._count(self.counted)
        kl = self._kl() / self._count(self.kl_counted)
        objective = policy - self._penalty(kl) + self._bonus()
        tokens = self.tokens
        return {
            "objective": objective + 0.0,
            "loss": -objective + 0.0,
            "policy": policy + 0.0,
            "kl": kl + 0.0 if self.kl_known else None,
            "entropy": self._entropy() if self.entropy else None,
            "denominator": self._denominator(),
            "denominator_of": self._denominator_of(),
            "records": self.records,
            "groups": self.groups,
            "responses": self.responses,
            "tokens": tokens,
            "clip_fraction": _share(self.clipped_low + self.clipped_high, tokens),
            "clip_fraction_low": _share(self.clipped_low, tokens),
            "clip_fraction_high": _share(self.clipped_high, tokens),
            "ratio_mean": self.ratio.value() / tokens if tokens else None,
            "ratio_min": self.ratio_min if tokens else None,
            "ratio_max": self.ratio_max if tokens else None,
            "gradient_norm": self._gradient_norm(),
            "dead_groups": self.dead_groups,
            "empty_responses": self.empty_responses,
            "on_policy_records": self.on_policy,
        }

    def _beta_sum(self, beta: float) -> ExactSum:
        """Σ of the KL of the records that have this β."""
        return self.kl.setdefault(beta, ExactSum())

    def _coef_sum(self, breakdown: Breakdown) -> ExactSum:
        """Σ of the entropy of the records that have this coefficient."""
        return self.entropy.setdefault(breakdown.objective.entropy_coef, ExactSum())

    def _entropy(self) -> float:
        whole = math.fsum(part.value() for part in self.entropy.values())
        return whole / self._count(self.bonus_counted)

    def _bonus(self) -> float:
        parts = (coef * part.value() for coef, part in self.entropy.items())
        return math.fsum(parts) / self._count(self.bonus_counted)

    def _kl(self) -> float:
        return _sum([part.value() for part in self.kl.values()])

    def _penalty(self, kl: float) -> float:
        if len(self.kl) == 1:
            (beta,) = self.kl
            return beta * kl if beta else 0.0
        parts = [beta * part.value() for beta, part in self.kl.items() if beta]
        return math.fsum(parts) / self._count(self.kl_counted)

    def _gradient_norm(self) -> float:
        policy, kl = self._count(self.counted), self._count(self.kl_counted)
        if self.batch == "record" or not self.kl_squares.value():
            return math.sqrt(self.squares.value()) / policy
        square = self.squares.value() / policy**2 + self.kl_squares.value() / kl**2
        return math.sqrt(max(square - 2.0 * self.cross.value() / (policy * kl), 0.0))

    def _denominator(self) -> float | int | None:
        if self.batch == "record":
            return self.records
        if len(self.divisors) != 1:
            return None  # the records' own constants differ
        (divisor,) = self.divisors
        value = divisor * (self.counted if self.counts else 1.0)
        return int(value) if value.is_integer() else value

    def _denominator_of(self) -> str:
        return f"records, each by its own {self.of}" if self.batch == "record" else self.of

    def signature(self) -> str:
        """The signature of the batch; a value that differs between records reads ``mixed``."""
        return line(common(list(self.signatures.values()))) if self.signatures else ""


def _counted(term: Term) -> float:
    """What a term's weights count in these records: whole numbers, so that the sum is exact."""
    return 0.0 if term.weights.counts is None else float(term.weights.counts.sum())


def _sum(parts: list[float]) -> float:
    # A KL that β = 0 keeps out of J may be infinite, even both ways: no sum, then, for ``fsum``.
    return math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
