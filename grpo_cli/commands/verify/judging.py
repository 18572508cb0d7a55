"""What is done with the records of a piece, in whatever process: each beside what it expects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.differing import differing
from grpo_cli.commands.verify.together import agreeing, kind
from grpo_cli.commands.verify.verdict import Verdict, Wanted, agreed, judge, read_expectations
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import References
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.records import DecodedChunk, Raw, Record, layout, record
from grpo_cli.records.record import one_by_one
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import Chosen, choose, completed


@dataclass(frozen=True)
class Judged:
    """A record that expects something.

    Attributes:
        verdict: what became of it; where it differs, without a cause as yet.
        plan: what it was evaluated as.
        company: the number of those of its piece that it was evaluated with; None where alone.
    """

    verdict: Verdict
    plan: Plan
    company: int | None = None


@dataclass
class Outcome:
    """What became of a piece of input, in order: None is a record that expects nothing."""

    items: list[Judged | None] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    references: References = field(default_factory=References)


class Ready(NamedTuple):
    """A record that can be judged, and what it must share to be judged beside others."""

    record: Record
    plan: Plan
    wanted: Wanted
    key: Hashable | None


_MANY = 64
"""Records that are evaluated together."""


@dataclass(frozen=True)
class Judging:
    """The part of the work that runs in any process.

    Attributes:
        variant: the variant for all records; "" takes what each says of its framework.
        stages, hyperparameters: what the flags change in it.
        within: when two numbers agree.
        skip: whether to go on behind a bad record.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    variant: str
    stages: Mapping[str, str]
    hyperparameters: Mapping[str, object]
    within: Tolerance
    skip: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Outcome:
        """Judges records in order; stops at the first bad one unless it is to be skipped."""
        outcome = Outcome(skipped=Skipped(self.most_errors))
        for item in self._each(decoded, outcome.references):
            if not isinstance(item, InputError):
                outcome.items.append(item)
                continue
            outcome.skipped.add(item)
            if not self.skip:
                return outcome
        return outcome

    def _each(
        self, decoded: Iterable[DecodedChunk], references: References
    ) -> Iterator[Judged | InputError | None]:
        plans: Plans = {}
        numbers = count()
        items = (self._read(raw, plans, references) for raw in one_by_one(decoded))
        for key, group in groupby(items, lambda item: getattr(item, "key", None)):
            if key is None:
                yield from (self._alone(item) for item in group)
            else:
                yield from self._together(list(group), numbers)

    def _read(
        self, raw: Raw | InputError, plans: Plans, references: References
    ) -> Ready | InputError | None:
        read = raw if isinstance(raw, InputError) else record(raw)
        if isinstance(read, InputError):
            return read
        assert isinstance(raw, Raw)
        if read.expected is None:
            return None
        try:
            plan = self._plan(raw, read, plans)
            wanted = read_expectations(read)
        except InputError as error:
            return error
        if "log_probs_ref" in read.columns:
            references.merge(References(first={True: 0}))
        elif references.lacking is None and plan.leaves_kl_out(read.hyperparameters):
            with suppress(InputError):  # said where the record is judged
                alone = Chunk.of([read])
                references.add(alone, plan, alone.objective(plan))
        alike = kind(wanted[0])
        if any(one.level == "record" and np.isnan(one.values[0]) for one in wanted[0]):
            alike = None  # a NaN may be of a mean over nothing, which is not compared
        key = None if alike is None else (id(plan), alike, layout(read), read.mask is None)
        return Ready(read, plan, wanted, key)

    def _alone(self, item: Ready | InputError | None) -> Judged | InputError | None:
        if not isinstance(item, Ready):
            return item
        try:
            return Judged(judge(item.record, item.plan, self.within), item.plan)
        except InputError as error:
            return error

    def _together(
        self, items: Sequence[Any], numbers: Iterator[int]
    ) -> Iterator[Judged | InputError | None]:
        """Records alike: those of which the verdict is sure at once, the others one by one."""
        for start in range(0, len(items), _MANY):
            few: Sequence[Ready] = items[start : start + _MANY]
            company = next(numbers)
            for item, verdict in zip(few, self._sure(few), strict=True):
                if verdict is None:
                    yield self._alone(item)
                else:
                    yield Judged(verdict, item.plan, company)

    def _sure(self, few: Sequence[Ready]) -> Sequence[Verdict | None]:
        """The verdicts that are sure; none where one of the records cannot be evaluated."""
        records, plan = [item.record for item in few], few[0].plan
        try:
            breakdown = Evaluator(plan).evaluate(Chunk.of(records))
        except (InputError, HyperparameterError):
            return [None] * len(few)
        wanted = [item.wanted for item in few]
        sure = agreeing(records, [one[0] for one in wanted], breakdown, self.within)
        if sure.all():
            verdicts: list[Verdict | None] = [None] * len(few)
        else:
            verdicts = differing(records, wanted, plan, breakdown, self.within)
        signature = breakdown.objective.signature
        keys = tuple(one.key for one in wanted[0][0])  # the same of all
        return [
            agreed(item.record, plan, signature, keys, item.wanted[1]) if agrees else verdict
            for item, agrees, verdict in zip(few, sure.tolist(), verdicts, strict=True)
        ]

    def _plan(self, raw: Raw, read: Record, plans: Plans) -> Plan:
        settings = None if self.variant else raw.value.get("framework")
        key = (repr(settings), read.advantages is not None)
        if key not in plans:
            plans[key] = completed(
                self._choose(settings, read),
                advantages_given=read.advantages is not None,
                stages=self.stages,
                hyperparameters=self.hyperparameters,
            )
        return plans[key]

    def _choose(self, settings: Any, read: Record) -> Chosen:
        if not isinstance(settings, dict):
            return Chosen(self.variant or "grpo")
        try:
            return choose(settings)
        except InputError as error:
            path = read.prefix + error.path
            raise InputError(error.message, path=path, source=read.source, line=read.line) from None


Plans = dict[tuple[str, bool], Plan]
"""(framework, whether advantages are given) → its plan."""
