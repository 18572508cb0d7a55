"""What is done with the records of a piece, in whatever process: each beside what it expects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.together import agreeing, kind
from grpo_cli.commands.verify.verdict import Verdict, Wanted, agreed, judge, read_expectations
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.records import DecodedChunk, Raw, Record, layout, record
from grpo_cli.records.decode.chunks import one_by_one
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import Chosen, choose, completed


@dataclass(frozen=True)
class Judged:
    """A record that expects something.

    Attributes:
        verdict: what became of it; where it differs, without a cause as yet.
        plan: what it was evaluated as.
        words: the same as the flags that would make it.
    """

    verdict: Verdict
    plan: Plan
    words: str


@dataclass
class Outcome:
    """What became of a piece of input, in order: None is a record that expects nothing."""

    items: list[Judged | None] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)


class Ready(NamedTuple):
    """A record that can be judged, and what it must share to be judged beside others."""

    record: Record
    plan: Plan
    words: str
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
        for item in self._each(decoded):
            if not isinstance(item, InputError):
                outcome.items.append(item)
                continue
            outcome.skipped.add(item)
            if not self.skip:
                break
        return outcome

    def _each(self, decoded: Iterable[DecodedChunk]) -> Iterator[Judged | InputError | None]:
        plans: Plans = {}
        items = (self._read(raw, plans) for raw in one_by_one(decoded))
        for key, group in groupby(items, lambda item: getattr(item, "key", None)):
            if key is None:
                yield from (self._alone(item) for item in group)
            else:
                yield from self._together(list(group))

    def _read(self, raw: Raw | InputError, plans: Plans) -> Ready | InputError | None:
        read = raw if isinstance(raw, InputError) else record(raw)
        if isinstance(read, InputError):
            return read
        assert isinstance(raw, Raw)
        if read.expected is None:
            return None
        try:
            words, plan = self._plan(raw, read, plans)
            wanted = read_expectations(read)
        except InputError as error:
            return error
        alike = kind(wanted[0])
        key = None if alike is None else (id(plan), alike, layout(read), read.mask is None)
        return Ready(read, plan, words, wanted, key)

    def _alone(self, item: Ready | InputError | None) -> Judged | InputError | None:
        if not isinstance(item, Ready):
            return item
        try:
            return Judged(judge(item.record, item.plan, self.within), item.plan, item.words)
        except InputError as error:
            return error

    def _together(self, items: Sequence[Any]) -> Iterator[Judged | InputError | None]:
        """Records alike: those that surely agree at once, the others one by one."""
        for start in range(0, len(items), _MANY):
            few: Sequence[Ready] = items[start : start + _MANY]
            sure, signature = self._sure(few)
            for item, agrees in zip(few, sure, strict=True):
                if agrees:
                    verdict = agreed(item.record, item.plan, signature, item.wanted)
                    yield Judged(verdict, item.plan, item.words)
                else:
                    yield self._alone(item)

    def _sure(self, few: Sequence[Ready]) -> tuple[Sequence[bool], str]:
        """Which of the records surely agree; none where one of them cannot be evaluated."""
        records = [item.record for item in few]
        try:
            breakdown = Evaluator(few[0].plan).evaluate(Chunk.of(records))
        except (InputError, HyperparameterError):
            return [False] * len(few), ""
        wanted = [item.wanted[0] for item in few]
        sure = agreeing(records, wanted, breakdown, self.within)
        return sure.tolist(), breakdown.objective.signature

    def _plan(self, raw: Raw, read: Record, plans: Plans) -> tuple[str, Plan]:
        settings = None if self.variant else raw.value.get("framework")
        key = (repr(settings), read.advantages is not None)
        if key not in plans:
            chosen = self._choose(settings, read)
            plan = completed(
                chosen,
                advantages_given=read.advantages is not None,
                stages=self.stages,
                hyperparameters=self.hyperparameters,
            )
            plans[key] = chosen.words, plan
        return plans[key]

    def _choose(self, settings: Any, read: Record) -> Chosen:
        if not isinstance(settings, dict):
            return Chosen(self.variant or "grpo")
        try:
            return choose(settings)
        except InputError as error:
            path = read.prefix + error.path
            raise InputError(error.message, path=path, source=read.source, line=read.line) from None


Plans = dict[tuple[str, bool], tuple[str, Plan]]
"""(framework, whether advantages are given) → its flags and its plan."""
