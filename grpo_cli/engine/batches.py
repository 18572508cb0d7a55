"""The totals of batches: of the whole input, or one for each value of the fields of ``--batch``.

Where a batch is an optimiser step, also the loss that its trainer makes of the micro-batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.rows.fields import ACCUMULATED
from grpo_cli.engine.totals import Sizes, Totals
from grpo_cli.errors import UsageError
from grpo_cli.objective.accumulation import Rule, accumulated, rule_of
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.terms import ENTROPY, KL, POLICY
from grpo_cli.records import MicroBatch, key_of
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

    losses: dict[MicroBatch, list[Totals]] = field(default_factory=dict)
    given: set[tuple[bool, bool]] = field(default_factory=set)
    rules: set[Rules] = field(default_factory=set)

    def add(self, place: MicroBatch, loss: Totals, rules: Rules) -> None:
        """Adds a record's loss."""
        self._add(place, loss)
        self.given.add(place.given)
        self.rules.add(rules)

    def merge(self, later: MicroBatches) -> None:
        """Adds the micro-batches of records that follow."""
        for place, several in later.losses.items():
            for loss in several:
                copy = Totals("input")
                copy.merge(loss)
                self._add(place, copy)
        self.given |= later.given
        self.rules |= later.rules

    def _add(self, place: MicroBatch, loss: Totals) -> None:
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
        """The fields of ``ACCUMULATED``; None for what is unknown: some records name no place."""
        places = {(place.rank, place.number) for place in self.losses}
        twice = len(places) < len(self.losses)  # one number in several files
        if self.records != whole.records or len(self.given) != 1 or twice:
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
        of_responses = rule == "by responses"
        ranks = [
            [(one.part(term), one.responses if of_responses else one.tokens) for one in rank]
            for rank in self._ranks()
        ]
        return accumulated(rule, ranks)

    def _ranks(self) -> Iterable[Sequence[Totals]]:
        """The micro-batches of each rank."""
        ranks: dict[Hashable, list[Totals]] = {}
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


@dataclass
class BatchTotals:
    """Totals by the key of a batch, in the order in which the batches begin; they merge.

    Attributes:
        batch: "input", "record", or the fields of ``--batch``.
        plan: in words, which objective they are of; totals of different ones do not merge.
        totals: key → totals; only () where all records are one batch, or each is one.
        names: key → field → value, as the first record of the batch has them.
        micro_batches: key → the micro-batches of the batch's records.
        sizes: those of each batch, where rows of tokens are made.
    """

    batch: str
    plan: str = ""
    totals: dict[Hashable, Totals] = field(default_factory=dict)
    names: dict[Hashable, Mapping[str, Any]] = field(default_factory=dict)
    micro_batches: dict[Hashable, MicroBatches] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    _mean: Totals | None = field(default=None, compare=False, repr=False)

    def add(self, chunk: Chunk, breakdown: Breakdown) -> None:
        """Adds the records of a chunk."""
        self._mean = None
        if not self.by_field:
            self._of(()).add(breakdown)
            return
        for key, cut in chunk.cuts:
            self.names.setdefault(key, chunk.of_batches[cut.records.start])
            self._of(key).add(breakdown, cut)
        if not any(any(one.micro_batch.given) for one in chunk.of_batches):
            return
        rules = rules_of(breakdown.objective)
        cuts = breakdown.batch.cuts(range(len(chunk.keys) + 1))
        for key, of, cut in zip(chunk.keys, chunk.of_batches, cuts, strict=True):
            loss = Totals("input")
            loss.add(breakdown, cut)
            micro_batches = self.micro_batches.setdefault(key, MicroBatches())
            micro_batches.add(of.micro_batch, loss, rules)

    def size(self, names: Mapping[str, Any]) -> list[float]:
        """[2] the ``Sizes`` of the batch of a record that has these values of the fields."""
        return self.sizes.read(self._key(names))

    def contribution(self, record: Mapping[str, Any]) -> float:
        """What a record with these values of the fields adds to J of its batch."""
        totals, parts = self.totals[self._key(record)], record["undivided"]
        return added([part / totals.count(name) for name, part in parts.items()]) + 0.0

    def _key(self, names: Mapping[str, Any]) -> Hashable:
        fields = next(iter(self.names.values()), {})
        return key_of({name: names[name] for name in fields})

    def _of(self, key: Hashable) -> Totals:
        if key not in self.totals:
            self.totals[key] = Totals("input" if self.by_field else self.batch)
        return self.totals[key]

    def merge(self, later: BatchTotals) -> None:
        """Adds the totals of records that follow.

        Raises:
            UsageError: where they are of another objective.
        """
        mine, theirs = (f"{one.plan} per {one.batch}" for one in (self, later))
        if mine != theirs:
            raise UsageError(
                f"totals of different objectives cannot be merged: {mine} and {theirs}"
            )
        self._mean = None
        for key, totals in later.totals.items():
            self._of(key).merge(totals)
        self.sizes.merge(later.sizes)
        for key, micro_batches in later.micro_batches.items():
            self.micro_batches.setdefault(key, MicroBatches()).merge(micro_batches)
        self.names = {**later.names, **self.names} if later.names else self.names

    @property
    def by_field(self) -> bool:
        """Whether fields of the records say which batch they belong to."""
        return self.batch not in ("input", "record")

    @property
    def tokens(self) -> int:
        """How many tokens the records have."""
        return sum(totals.tokens for totals in self.totals.values())

    @property
    def whole(self) -> Totals:
        """The totals of the only batch; with ``--batch FIELD`` the mean over the batches."""
        if not self.by_field:
            return self._of(())
        if self._mean is None:
            self._mean = Totals(self.batch)
            for totals in self.totals.values():
                self._mean.add_batch(totals)
        return self._mean

    def rows(self) -> list[dict[str, Any]]:
        """One row for each batch: its fields, then its totals by name; none without fields.

        Where a record names its micro-batch or rank, ``ACCUMULATED`` follows.
        """
        if not self.by_field:
            return []
        named, none = any(one.names_turns for one in self.totals.values()), MicroBatches()
        return [
            {
                **self.names[key],
                "signature": totals.signature(),
                **totals.row(names_turns=named),
                **(self.micro_batches.get(key, none).row(totals) if self.micro_batches else {}),
            }
            for key, totals in self.totals.items()
        ]
