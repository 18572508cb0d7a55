"""The groups of the steps that a report keeps, and the tokens of some of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from grpo_cli.commands.page.block import block
from grpo_cli.commands.report.choose import FOUND, WORST, Choice, Group, Kept, sample
from grpo_cli.commands.trend.measure import rewards_of
from grpo_cli.commands.trend.origins import RecordStep, StepSource
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import Accumulator
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import DecodedChunk, Raw, Record, record
from grpo_cli.variants.plan import Plan


@dataclass
class Keeper(Accumulator[None]):
    """Evaluates the records of the steps that are kept.

    Attributes:
        plan: the objective.
        step_source: how records say their step.
        choice: what is kept.
        statistics: those of each step, where the plan wants some.
        kept: the groups.
    """

    plan: Plan
    step_source: StepSource
    choice: Choice
    statistics: BatchStatistics | None
    kept: Kept = field(default_factory=Kept)

    by_columns: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ("plan", "step_source", "choice", "statistics")

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Keeps groups; errors of records were reported when the steps were measured."""
        made: dict[int, list[_Made]] = {}
        for raw in (raw for chunk in decoded for raw in chunk.items):
            step = self._step(raw)
            if step is not None and isinstance(raw, Raw):
                made.setdefault(step, []).extend(self._groups(raw, step))
        self.kept = Kept({step: [one.group for one in several] for step, several in made.items()})
        for step, several in made.items():
            chosen = {id(one) for one in sample(self.kept.steps[step], self.choice.groups)}
            for one in several:
                if id(one.group) in chosen and one.breakdown is not None:
                    one.group.block = block(one.raw, one.record, one.breakdown, one.rows)
        return iter(())

    def merge(self, later: Keeper) -> None:
        """Adds the groups of records that follow."""
        self.kept.merge(later.kept)

    def _step(self, raw: Raw | InputError) -> int | None:
        try:
            step = None if isinstance(raw, InputError) else self.step_source.of_record(raw).number
        except InputError:
            return None
        return step if step in self.choice.steps else None

    def _groups(self, raw: Raw, step: int) -> Iterator[_Made]:
        found = record(raw)
        try:
            chunk = None if isinstance(found, InputError) else Chunk.of([found])
        except InputError:
            chunk = None
        if chunk is None or isinstance(found, InputError):
            return
        breakdown = self._evaluated(chunk, step)
        numbers = np.asarray(found.groups or [0] * len(found.widths), dtype=np.int64)
        owner = (found.source, found.name)
        found_in = self.choice.found.get(owner, frozenset())
        worst_in = self.choice.worst.get(owner, frozenset())
        for number in range(int(numbers.max(initial=-1)) + 1):
            rows = np.flatnonzero(numbers == number).tolist()
            pointed = sorted((found_in | worst_in).intersection(rows))
            label = None if found.group_labels is None else found.group_labels[number]
            facts = _facts(found, chunk, breakdown, rows)
            place = (found.source, found.line, found.prefix, number)
            priority = self.choice.priority(*place)
            if pointed:
                priority = FOUND if found_in.intersection(rows) else WORST
            group = Group(
                facts | {"group": number if label is None else label, "pointed": pointed},
                priority,
                int(chunk.batch.responses.lengths[rows].sum()),
            )
            yield _Made(group, raw.with_lists(), found, breakdown, rows)

    def _evaluated(self, chunk: Chunk, step: int) -> Breakdown | None:
        """The record on its own; None where the objective needs what it has not."""
        try:
            chunk = replace(chunk, of_batches=[RecordStep(step)])
            return chunk.run(Evaluator(self.plan, self.statistics).evaluate)
        except InputError:
            return None


class _Made(NamedTuple):
    """A group, and what its tokens are made of."""

    group: Group
    raw: Raw
    record: Record
    breakdown: Breakdown | None
    rows: list[int]


def _facts(
    found: Record, chunk: Chunk, breakdown: Breakdown | None, rows: list[int]
) -> dict[str, Any]:
    """What is told of a group: its rewards, lengths, and how far its tokens went."""
    batch = chunk.batch
    lengths = batch.responses.lengths[rows].tolist()
    facts: dict[str, Any] = {
        "source": found.source,
        "line": found.line,
        "record": found.name,
        "responses": len(rows),
        "length_mean": math.fsum(lengths) / len(lengths),
        "length_max": max(lengths),
        "reward_mean": None,
        "reward_std": None,
        "clip_fraction": None,
        "log_ratio_max": None,
    }
    if (rewards := rewards_of(chunk, breakdown)) is not None:
        facts |= dict(
            zip(("reward_mean", "reward_std"), _spread(rewards[rows].tolist()), strict=True)
        )
    if breakdown is not None and sum(lengths):
        tokens = np.isin(batch.responses.index, rows)
        facts["clip_fraction"] = np.count_nonzero(breakdown.clip[tokens]) / sum(lengths)
        facts["log_ratio_max"] = float(np.abs(breakdown.log_ratio[tokens]).max())
    return facts


def _spread(values: list[float]) -> tuple[float, float | None]:
    """The mean and, of two or more, the standard deviation (ddof 1)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))
