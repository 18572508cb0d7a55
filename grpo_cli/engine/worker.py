"""Records → breakdowns → output bytes and totals: the part that runs in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective import moments
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.hyperparameters import HyperparameterError
from grpo_cli.objective.moments import ExactMoments
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import run
from grpo_cli.records import Record, assemble, layout
from grpo_cli.variants.plan import Plan

CHUNK_TOKENS = 16_384
"""Tokens evaluated together: enough that numpy's overhead is small, few enough to stay in cache."""

Encode = Callable[[Sequence[Record], Breakdown], list[bytes]]
Items = Iterable[Record | InputError]
Done = tuple[Sequence[Record], Breakdown] | InputError


@dataclass
class Outcome:
    """What became of a stretch of input.

    Attributes:
        pieces: one per evaluated record, in order.
        totals: what they add up to.
        skipped: the records that could not be evaluated.
        error: the one at which work stopped, when it was not to be skipped.
        notes: facts to tell once.
    """

    totals: Totals
    pieces: list[bytes] = field(default_factory=list)
    skipped: list[InputError] = field(default_factory=list)
    error: InputError | None = None
    notes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What to do with records.

    Attributes:
        plan: which objective.
        encode: a breakdown's bytes, one piece per record; None when only totals are wanted.
        skip: whether to go on behind a record that cannot be evaluated.
        moments: the batch statistics from the first pass over the input, where wanted.
    """

    plan: Plan
    encode: Encode | None
    skip: bool
    moments: ExactMoments | None = None

    def work(self, items: Items) -> Outcome:
        """Evaluates records in order; stops at the first bad one unless it is to be skipped."""
        outcome = Outcome(Totals(self.plan.batch))
        for done in self._breakdowns(items):
            if isinstance(done, InputError):
                if not self.skip:
                    outcome.error = done
                    break
                outcome.skipped.append(done)
                continue
            records, breakdown = done
            outcome.totals.add(breakdown)
            outcome.notes |= dict.fromkeys(_notes(records[0], breakdown))
            if self.encode is not None:
                outcome.pieces += self.encode(records, breakdown)
        return outcome

    def measure(self, items: Items) -> ExactMoments:
        """The first pass: the sample's moments. Records that cannot be used are passed over."""
        found = ExactMoments()
        for group in chunks(items):
            if not isinstance(group, InputError):
                for _ in _each(group, lambda records: self._measure(records, found)):
                    pass
        return found

    def _breakdowns(self, items: Items) -> Iterator[Done]:
        for group in chunks(items):
            if isinstance(group, InputError):
                yield group
            else:
                yield from _each(group, self._evaluate)

    def _evaluate(self, records: Sequence[Record]) -> Breakdown:
        batch, objective = assemble(records), self.objective(records[0])
        statistics = None
        if objective.advantage.choice.measure is not None:
            if self.moments is None:
                statistics = moments.of_records(batch, objective)
            else:
                statistics = moments.of_input(self.moments, batch)
        return run(batch, objective, statistics)

    def _measure(self, records: Sequence[Record], found: ExactMoments) -> Breakdown | None:
        batch, objective = assemble(records), self.objective(records[0])
        if objective.advantage.choice.measure is not None:
            found.add(moments.sample(batch, objective))
        return None

    def objective(self, record: Record) -> Objective:
        """The objective for a record and those of the same layout."""
        given = record.advantages is not None
        return self.plan.objective(record.hyperparameters, advantages_given=given)


def chunks(items: Items) -> Iterator[list[Record] | InputError]:
    """Consecutive records that can be evaluated together, in pieces of ``CHUNK_TOKENS``."""
    group: list[Record] = []
    key: object = None
    room = 0
    for item in items:
        if isinstance(item, InputError):
            if group:
                yield group
                group = []
            yield item
            continue
        if group and (room <= 0 or layout(item) != key):
            yield group
            group = []
        if not group:
            key, room = layout(item), CHUNK_TOKENS
        group.append(item)
        room -= sum(item.widths)
    if group:
        yield group


def _each(records: Sequence[Record], evaluate: Callable[[Sequence[Record]], Any]) -> Iterator[Any]:
    """Evaluates records together; where one of them is bad, those around it, and it as an error."""
    while records:
        try:
            yield records, evaluate(records)
            return
        except (InputError, HyperparameterError) as error:
            place = 0 if len(records) == 1 else getattr(error, "record", None)
            if place is None:  # nobody knows whose fault it is: one by one
                for record in records:
                    yield from _each([record], evaluate)
                return
            if place:
                yield from _each(records[:place], evaluate)
            yield _located(error, records[place])
            records = records[place + 1 :]


def _located(error: InputError | HyperparameterError, record: Record) -> InputError:
    path = error.path if isinstance(error, InputError) else error.name
    path = path.removeprefix(record.prefix)
    return InputError(
        error.message, path=record.prefix + path, source=record.source, line=record.line
    )


def _notes(record: Record, breakdown: Breakdown) -> Iterator[str]:
    """Facts of a chunk that are told once."""
    if breakdown.batch.ratios is None and "log_probs_old" not in record.columns:
        yield "log_probs_old is missing: taken as on-policy, old := new, every ratio is 1"
    if record.advantages is not None and record.rewards is not None:
        if breakdown.objective.advantage.name == "given":
            yield "the records' advantages were used, not their rewards (--advantage to change it)"
    if breakdown.batch.responses.total and np.isinf(breakdown.ratio.max()):
        yield "a ratio exceeds the largest double and reads null in JSON; log_ratio has it"
