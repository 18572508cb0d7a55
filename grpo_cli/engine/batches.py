"""The totals of batches: of the whole input, or one for each value of the fields of ``--batch``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.batch import borders
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.micro_batches import MicroBatches, rules_of
from grpo_cli.engine.rows.fields import ACCUMULATED
from grpo_cli.engine.sizes import Sizes
from grpo_cli.engine.totals import TermSums, Totals
from grpo_cli.errors import UsageError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.summary import Summary
from grpo_cli.records import key_of


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
        summary = Summary(breakdown)
        for cut in breakdown.batch.cuts(borders(chunk.keys)):
            key = chunk.keys[cut.records.start]
            self.names.setdefault(key, chunk.of_batches[cut.records.start])
            self._of(key).add_some(summary, cut)
        if any(any(one.micro_batch.given) for one in chunk.of_batches):
            self._add_micro_batches(chunk, summary)

    def _add_micro_batches(self, chunk: Chunk, summary: Summary) -> None:
        rules = rules_of(summary.breakdown.objective)
        cuts = summary.breakdown.batch.cuts(range(len(chunk.keys) + 1))
        for key, of, cut in zip(chunk.keys, chunk.of_batches, cuts, strict=True):
            loss = TermSums()
            loss.add_some(summary, cut)
            micro_batches = self.micro_batches.setdefault(key, MicroBatches())
            micro_batches.add(of.micro_batch, loss, rules)

    def size(self, names: Mapping[str, Any]) -> list[float]:
        """[2] the ``Sizes`` of the batch of a record that has these values of the fields."""
        key = key_of({name: names[name] for name in next(iter(self.names.values()), {})})
        return self.sizes.read(key)

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
            raise UsageError(f"totals of different objectives do not merge: {mine}, and {theirs}")
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
    def records(self) -> int:
        """How many records were added."""
        return sum(totals.records for totals in self.totals.values())

    @property
    def tokens(self) -> int:
        """How many tokens they have."""
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
        named = any(totals.names_turns for totals in self.totals.values())
        return [
            {
                **self.names[key],
                "signature": totals.signature(),
                **totals.row(names_turns=named),
            }
            | self._accumulated(key, totals)
            for key, totals in self.totals.items()
        ]

    def _accumulated(self, key: Hashable, totals: Totals) -> dict[str, Any]:
        """What the trainer makes of the batch's micro-batches; empty where no record names one."""
        if not self.micro_batches:
            return {}
        micro_batches = self.micro_batches.get(key, MicroBatches())
        if micro_batches.records != totals.records:
            return dict.fromkeys(ACCUMULATED)
        return micro_batches.row(totals)
