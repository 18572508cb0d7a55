"""Records → breakdowns → output bytes and totals: the part that runs in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from grpo_cli.batch import Batch
from grpo_cli.engine.chunks import Stretch, chunks, stretches
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective import statistics
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.records import Handful, Raw, Record, assemble, lay, record
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan

Encode = Callable[[Sequence[Record], Breakdown], list[bytes]]
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
        told: the same, of how the records were read.
    """

    totals: Totals
    pieces: list[bytes] = field(default_factory=list)
    skipped: list[InputError] = field(default_factory=list)
    error: InputError | None = None
    notes: dict[str, None] = field(default_factory=dict)
    told: dict[str, None] = field(default_factory=dict)


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

    def work(self, handfuls: Iterable[Handful]) -> Outcome:
        """Evaluates records in order; stops at the first bad one unless it is to be skipped."""
        outcome = Outcome(Totals(self.plan.batch))
        first, handfuls = _ahead(handfuls)
        outcome.notes |= dict.fromkeys(_origin(first, self.plan))
        for done in self._breakdowns(handfuls):
            if isinstance(done, InputError):
                if not self.skip:
                    outcome.error = done
                    break
                outcome.skipped.append(done)
                continue
            records, breakdown = done
            outcome.totals.add(breakdown)
            outcome.notes |= dict.fromkeys(_notes(breakdown))
            if self.encode is not None:
                outcome.pieces += self.encode(records, breakdown)
        return outcome

    def measure(self, handfuls: Iterable[Handful]) -> ExactMoments:
        """The first pass: the sample's moments. Records that cannot be used are passed over."""
        found = ExactMoments()
        for _ in self._done(handfuls, lambda batch, objective: _measure(batch, objective, found)):
            pass
        return found

    def _breakdowns(self, handfuls: Iterable[Handful]) -> Iterator[Done]:
        return self._done(handfuls, self._evaluate)

    def _done(
        self, handfuls: Iterable[Handful], read: Callable[[Batch, Objective], Any]
    ) -> Iterator[Any]:
        """What ``read`` makes of each batch of records, beside the records; or their errors."""

        def carefully(records: Sequence[Record]) -> Any:
            given = records[0].advantages is not None
            objective = self.plan.objective(records[0].hyperparameters, advantages_given=given)
            return read(assemble(records), objective)

        for stretch in stretches(handfuls, with_headers=self.encode is not None):
            if isinstance(stretch, InputError):
                yield stretch
                continue
            done = self._quickly(stretch, read)
            if done is not None:
                yield done
                continue
            for group in chunks(map(record, stretch.raws)):
                yield from (group,) if isinstance(group, InputError) else _each(group, carefully)

    def _quickly(
        self, stretch: Stretch, read: Callable[[Batch, Objective], Any]
    ) -> tuple[Sequence[Record], Any] | None:
        """All the records at once; None if they are unusual or there is any fault in them."""
        batch = None if stretch.packed is None else lay(stretch.packed)
        if batch is None or stretch.shared is None:
            return None
        fields, settings = stretch.shared
        try:
            given = "advantages" in fields.names
            objective = self.plan.objective(settings, advantages_given=given)
            return stretch.headers, read(batch, objective)
        except (InputError, HyperparameterError):
            return None

    def _evaluate(self, batch: Batch, objective: Objective) -> Breakdown:
        return evaluate(batch, objective, self.moments)


def _measure(batch: Batch, objective: Objective, found: ExactMoments) -> None:
    if statistics.wanted(objective):
        found.add(statistics.sample(batch, objective))


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
    if isinstance(error, InputError) and error.source is not None:
        return error
    path = error.path if isinstance(error, InputError) else error.name
    path = path.removeprefix(record.prefix)
    return InputError(
        error.message, path=record.prefix + path, source=record.source, line=record.line
    )


def _ahead(
    handfuls: Iterable[Handful],
) -> tuple[Raw | InputError | None, Iterable[Handful]]:
    """The first record, and all of them."""
    rest = iter(handfuls)
    few = next(rest, None)
    return (None, ()) if few is None else (few.items[0], chain((few,), rest))


def _origin(first: Raw | InputError | None, plan: Plan) -> Iterator[str]:
    """That the records say which framework computed them, where another variant was asked for."""
    value = first.value if isinstance(first, Raw) else None
    framework = value.get("framework") if isinstance(value, dict) else None
    if not isinstance(framework, dict):
        return
    name = str(framework.get("name", "")).lower()
    loss = framework.get("loss_type") or framework.get("policy_loss")
    row = f"{name}/{loss}"
    if row in VARIANTS and not plan.variant.startswith(f"{name}/"):
        yield (
            f"the records say that {name} computed them as {loss}: "
            f"-v {row} reproduces it (grpo verify checks how)"
        )


def _notes(breakdown: Breakdown) -> Iterator[str]:
    """Facts of a chunk that are told once."""
    batch = breakdown.batch
    if batch.log_probs_new is not None and batch.log_probs_old is batch.log_probs_new:
        yield "log_probs_old is missing: taken as on-policy, old := new, every ratio is 1"
    if batch.rewards is not None and breakdown.objective.advantage.choice.given:
        yield "the records' advantages were used, not their rewards (--advantage to change it)"
    if batch.responses.total and np.isinf(breakdown.ratio.max()):
        yield "a ratio exceeds the largest double and reads null in JSON; log_ratio has it"
