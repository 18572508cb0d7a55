"""Judges the records of a piece of input, in any process: those alike together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import Wanted, read_expectations
from grpo_cli.commands.verify.verdict import Verdict, judge
from grpo_cli.engine.chunk import Chunk, assembled
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import References
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
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
    """

    verdict: Verdict
    plan: Plan


@dataclass
class Outcome:
    """What became of a piece of input, in order: None is a record that expects nothing."""

    items: list[Judged | None] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    references: References = field(default_factory=References)


class Question(NamedTuple):
    """A record and what it expects.

    Attributes:
        record: the record.
        plan: what it is evaluated as.
        wanted: what it expects.
    """

    record: Record
    plan: Plan
    wanted: Wanted

    @property
    def kind(self) -> Hashable:
        """What records must share to be compared together."""
        expected = [(each.key, each.level, bool(each.given.any())) for each in self.wanted[0]]
        return id(self.plan), tuple(expected), layout(self.record), self.record.mask is None


Plans = dict[tuple[str, bool], Plan]
"""(framework, whether advantages are given) → its plan."""


@dataclass(frozen=True)
class Judging:
    """The part of the work that runs in any process.

    Attributes:
        variant: the variant for all records; "" takes the one of each record's framework.
        stages, hyperparameters: what the flags change in it.
        within: when two numbers agree.
        skip: whether to continue after a bad record.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    variant: str
    stages: Mapping[str, str]
    hyperparameters: Mapping[str, object]
    within: Tolerance
    skip: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Outcome:
        """Judges records in order; stops at the first bad one unless such records are skipped."""
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
        items = (self._read(raw, plans, references) for raw in one_by_one(decoded))
        for kind, group in groupby(items, lambda item: getattr(item, "kind", None)):
            if kind is None:
                yield from (item for item in group if not isinstance(item, Question))
            else:
                yield from self._judged([item for item in group if isinstance(item, Question)])

    def _read(
        self, raw: Raw | InputError, plans: Plans, references: References
    ) -> Question | InputError | None:
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
            with suppress(InputError):  # which is raised again where the record is evaluated
                alone = Chunk.of([read])
                references.add(alone, plan, alone.objective(plan))
        return Question(read, plan, wanted)

    def _judged(self, questions: Sequence[Question]) -> Iterator[Judged | InputError]:
        """Yields what became of records of one kind, which are evaluated together."""
        plan = questions[0].plan
        wanted = {id(question.record): question.wanted for question in questions}

        def judge_chunk(chunk: Chunk) -> list[Verdict | InputError]:
            breakdown = Evaluator(plan).evaluate(chunk)
            expected = [wanted[id(each)] for each in chunk.records]
            return judge(chunk.records, expected, breakdown, self.within, plan.variant)

        for part in assembled(question.record for question in questions):
            for found in [part] if isinstance(part, InputError) else part.each(judge_chunk):
                for verdict in [found] if isinstance(found, InputError) else found[1]:
                    yield Judged(verdict, plan) if isinstance(verdict, Verdict) else verdict

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
