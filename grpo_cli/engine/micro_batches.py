"""The micro-batches of one optimiser step, and the loss that its trainer makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.engine.rows.fields import ACCUMULATED
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.accumulation import Rule, rule_of
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.terms import ENTROPY, KL, POLICY
from grpo_cli.records import MicroBatch
from grpo_cli.variants import framework_of

Rules = tuple[tuple[str, Rule | None], ...]


@dataclass
class MicroBatches:
    """Totals of the micro-batches of one batch; they merge.

    A record that gives its rank and not the number of its micro-batch is one.

    Attributes:
        totals: place → the totals of each micro-batch there; one, if its number is given.
        given: whether rank and number are given, as each record has it.
        rules: for each term, how the trainer adds micro-batches up, as each record has it.
    """

    totals: dict[MicroBatch, list[Totals]] = field(default_factory=dict)
    given: set[tuple[bool, bool]] = field(default_factory=set)
    rules: set[Rules] = field(default_factory=set)

    def add(self, place: MicroBatch, totals: Totals, objective: Objective) -> None:
        """Adds a record's totals."""
        self._add(place, totals)
        self.given.add(place.given)
        self.rules.add(_rules(objective))

    def merge(self, later: MicroBatches) -> None:
        """Adds the micro-batches of records that follow."""
        for place, several in later.totals.items():
            for totals in several:
                self._add(place, totals)
        self.given |= later.given
        self.rules |= later.rules

    def _add(self, place: MicroBatch, totals: Totals) -> None:
        there = self.totals.setdefault(place, [])
        if there and place.number is not None:
            there[0].merge(totals)
        else:
            there.append(totals)

    @property
    def records(self) -> int:
        """How many records they have."""
        return sum(totals.records for several in self.totals.values() for totals in several)

    def row(self, whole: Totals) -> dict[str, Any]:
        """The fields of ``ACCUMULATED``; None for what is unknown.

        Args:
            whole: the totals of the batch.
        """
        count = sum(map(len, self.totals.values()))
        return dict(zip(ACCUMULATED, (count, *self._loss(whole)), strict=True))

    def _loss(self, whole: Totals) -> tuple[str | None, float | None]:
        """The policy's rule in words, and the loss."""
        if len(self.rules) != 1 or len(self.given) != 1 or not self._apart:
            return None, None
        (found,) = self.rules
        rules = {name: rule for name, rule in found if whole.has(name)}
        values = [self._value(name, rule, whole) for name, rule in rules.items()]
        if None in values:
            return None, None
        loss = -added([value for value in values if value is not None])
        return _words(rules[POLICY], whole), loss + 0.0

    @property
    def _apart(self) -> bool:
        """Whether no micro-batch number without a rank comes from several files."""
        places = {(place.rank, place.number) for place in self.totals}
        return len(places) == len(self.totals)

    def _value(self, term: str, rule: Rule | None, whole: Totals) -> float | None:
        """What the micro-batches' values of a term come to in J."""
        if rule is None:
            return None
        if rule == "whole step":
            return whole.parts()[term]
        ranks = [[totals.part(term) for totals in rank] for rank in self._ranks()]
        if rule == "sum":
            return added([added(parts) for parts in ranks]) / len(ranks)
        if rule == "mean":
            return added([added(parts) / len(parts) for parts in ranks]) / len(ranks)
        unit = rule.removeprefix("by ")
        held = [(getattr(one, unit), one.part(term)) for rank in self._ranks() for one in rank]
        return added([size * part for size, part in held]) / max(sum(size for size, _ in held), 1)

    def _ranks(self) -> Iterator[Sequence[Totals]]:
        """The micro-batches of each rank."""
        for rank in dict.fromkeys(place.rank for place in self.totals):
            places = (self.totals[place] for place in self.totals if place.rank == rank)
            yield [totals for several in places for totals in several]


def _rules(objective: Objective) -> Rules:
    """For each term, how the objective's trainer adds the losses of micro-batches up."""
    room = framework_of(objective.name)
    usual = None if room is None else room.accumulation
    of_entropy = usual if room is None else room.entropy_accumulation or usual
    kl = objective.kl_aggregate or objective.aggregate
    entropy = objective.entropy_aggregate or objective.aggregate
    return (
        (POLICY, rule_of(objective.aggregate, usual)),
        (KL, rule_of(kl, usual)),
        (ENTROPY, rule_of(entropy, of_entropy)),
    )


def _words(rule: Rule | None, whole: Totals) -> str | None:
    """The rule; for ``whole step`` by what the denominator counts there, if it counts."""
    if rule != "whole step":
        return rule
    if not whole.counts:
        return "sum"
    return " or ".join(sorted({f"by {of.split()[0].strip(',')}" for of in whole.of}))
