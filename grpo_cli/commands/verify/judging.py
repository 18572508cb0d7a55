"""Judges the records of the input, in any process: those of one kind together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, ClassVar

from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.commands.verify.verdict import Judged, Question, judge
from grpo_cli.engine.chunk import Chunk, assembled
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import Accumulator
from grpo_cli.engine.references import References
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Raw, Record, record
from grpo_cli.records.record import one_by_one
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import Chosen, choose, completed


class Judging(Accumulator[Any]):
    """Judges records in order.

    Args:
        variant: the variant for all records; "" takes the one of each record's framework.
        stages, hyperparameters: what the flags change in it.
        within: when two numbers agree.

    Attributes:
        items: what became of the records; None of one that expects nothing.
        references: which of them have a reference.
    """

    by_columns: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ("variant", "stages", "hyperparameters", "within")

    def __init__(
        self,
        variant: str,
        stages: Mapping[str, str],
        hyperparameters: Mapping[str, object],
        within: Tolerance,
    ) -> None:
        self.variant = variant
        self.stages = stages
        self.hyperparameters = hyperparameters
        self.within = within
        self.items: list[Judged | None] = []
        self.references = References()

    def merge(self, later: Judging) -> None:
        """Adds the records that follow; refuses those with a reference among some without."""
        self.items += later.items
        self.references.merge(later.references)
        self.error = self.references.error

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Judges records in order, and yields the errors of those that cannot be judged."""
        plans: Plans = {}
        questions = (self._question(raw, plans) for raw in one_by_one(decoded))
        for kind, group in groupby(questions, lambda item: getattr(item, "kind", None)):
            found: Iterable[Judged | InputError | None]
            if kind is None:
                found = (item for item in group if not isinstance(item, Question))
            else:
                found = self._judged(item for item in group if isinstance(item, Question))
            for item in found:
                if isinstance(item, InputError):
                    yield item
                else:
                    self.items.append(item)

    def _question(self, raw: Raw | InputError, plans: Plans) -> Question | InputError | None:
        """Reads what a record expects; None of one that expects nothing."""
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
            self.references.merge(References(first={True: 0}))
        elif self.references.lacking is None and plan.leaves_kl_out(read.hyperparameters):
            with suppress(InputError):  # which is raised again where the record is evaluated
                alone = Chunk.of([read])
                self.references.add(alone, plan, alone.objective(plan))
        return Question(read, plan, wanted)

    def _judged(self, questions: Iterable[Question]) -> Iterator[Judged | InputError]:
        """Yields what became of questions of one kind, whose records are evaluated together."""
        asked: dict[int, Question] = {}

        def next_record(question: Question) -> Record:
            asked[id(question.record)] = question
            return question.record

        def judge_chunk(chunk: Chunk) -> list[Judged | InputError]:
            asked_here = [asked[id(each)] for each in chunk.records]
            return judge(asked_here, Evaluator(asked_here[0].plan).evaluate(chunk), self.within)

        for part in assembled(map(next_record, questions)):
            for found in [part] if isinstance(part, InputError) else part.each(judge_chunk):
                yield from [found] if isinstance(found, InputError) else found[1]

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
