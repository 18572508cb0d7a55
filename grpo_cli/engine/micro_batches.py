"""The micro-batches of one optimiser step, and the loss that its trainer makes of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.engine.rows.fields import ACCUMULATED
from grpo_cli.engine.totals import TermSums, Totals
from grpo_cli.objective.accumulation import Rule, rule_of
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.terms import ENTROPY, KL, POLICY
from grpo_cli.records import MicroBatch
from grpo_cli.variants import framework_of

Rules = tuple[tuple[str, Rule | None], ...]


@dataclass
class MicroBatches:
    """The micro-batches of one batch; they merge.

    A record that gives its rank and not the number of its micro-batch is one.

    Attributes:
        losses: place → the micro-batches there; one, if its number is given.
        given: whether rank and number are given, as each record has it.
        rules: for each term, how the trainer adds micro-batches up, as each record has it.
    """

    losses: dict[MicroBatch, list[TermSums]] = field(default_factory=dict)
    given: set[tuple[bool, bool]] = field(default_factory=set)
    rules: set[Rules] = field(default_factory=set)

    def add(self, place: MicroBatch, loss: TermSums, rules: Rules) -> None:
        """Adds a record's loss."""
        self._add(place, loss)
        self.given.add(place.given)
        self.rules.add(rules)

    def merge(self, later: MicroBatches) -> None:
        """Adds the micro-batches of records that follow."""
        for place, several in later.losses.items():
            for loss in several:
                copy = TermSums()
                copy.merge(loss)
                self._add(place, copy)
        self.given |= later.given
        self.rules |= later.rules

    def _add(self, place: MicroBatch, loss: TermSums) -> None:
        there = self.losses.setdefault(place, [])
        if there and place.number is not None:
            there[0].merge(loss)
        else:
            there.append(loss)

    @property
    def records(self) -> int:
        """How many records they have."""
        return sum(loss.records for several in self.losses.values() for loss in several)

    def row(self, whole: Totals) -> dict[str, Any]:
        """The fields of ``ACCUMULATED``; None for what is unknown.

        Args:
            whole: the totals of the batch.
        """
        places = {(place.rank, place.number) for place in self.losses}
        if len(self.given) != 1 or len(places) < len(self.losses):  # one number in several files
            return dict.fromkeys(ACCUMULATED)
        count = sum(map(len, self.losses.values()))
        return dict(zip(ACCUMULATED, (count, *self._loss(whole)), strict=True))

    def _loss(self, whole: Totals) -> tuple[str | None, float | None]:
        """The policy's rule in words, and the loss."""
        if len(self.rules) != 1:
            return None, None
        (found,) = self.rules
        rules = {name: rule for name, rule in found if whole.has(name)}
        values = [self._value(name, rule, whole) for name, rule in rules.items()]
        if None in values:
            return None, None
        loss = -added([value for value in values if value is not None])
        return _words(rules[POLICY], whole), loss + 0.0

    def _value(self, term: str, rule: Rule | None, whole: Totals) -> float | None:
        """What the micro-batches' values of a term come to in J."""
        if rule is None:
            return None
        if rule == "whole step":
            return whole.parts()[term]
        ranks = [[loss.part(term) for loss in rank] for rank in self._ranks()]
        if rule == "sum":
            return added([added(parts) for parts in ranks]) / len(ranks)
        if rule == "mean":
            return added([added(parts) / len(parts) for parts in ranks]) / len(ranks)
        unit = rule.removeprefix("by ")
        held = [(getattr(one, unit), one.part(term)) for rank in self._ranks() for one in rank]
        return added([size * part for size, part in held]) / max(sum(size for size, _ in held), 1)

    def _ranks(self) -> Iterable[Sequence[TermSums]]:
        """The micro-batches of each rank."""
        ranks: dict[Hashable, list[TermSums]] = {}
        for place, several in self.losses.items():
            ranks.setdefault(place.rank, []).extend(several)
        return ranks.values()


def rules_of(objective: Objective) -> Rules:
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
