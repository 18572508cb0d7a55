"""What is done with the records of a piece, in whatever process: each beside what it expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.verdict import Verdict, judge
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Raw, Record, record
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

    items: list[Judged | InputError | None] = field(default_factory=list)


@dataclass(frozen=True)
class Judging:
    """The part of the work that runs in any process.

    Attributes:
        variant: the variant for all records; "" takes what each says of its framework.
        stages, hyperparameters: what the flags change in it.
        within: when two numbers agree.
        skip: whether to go on behind a bad record.
    """

    variant: str
    stages: Mapping[str, str]
    hyperparameters: Mapping[str, object]
    within: Tolerance
    skip: bool

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Outcome:
        """Judges records in order; stops at the first bad one unless it is to be skipped."""
        outcome = Outcome()
        plans: Plans = {}
        for raw in one_by_one(decoded):
            item = self._item(raw, plans)
            outcome.items.append(item)
            if isinstance(item, InputError) and not self.skip:
                break
        return outcome

    def _item(self, raw: Raw | InputError, plans: Plans) -> Judged | InputError | None:
        read = raw if isinstance(raw, InputError) else record(raw)
        if isinstance(read, InputError):
            return read
        assert isinstance(raw, Raw)
        if read.expected is None:
            return None
        try:
            words, plan = self._plan(raw, read, plans)
            return Judged(judge(read, plan, self.within), plan, words)
        except InputError as error:
            return error

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
