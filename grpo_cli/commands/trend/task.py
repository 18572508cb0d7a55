"""Records → the sums of their steps: small steps are evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from grpo_cli.batch import F64, borders
from grpo_cli.commands.trend.measure import ChunkNumbers, rewards_of
from grpo_cli.commands.trend.metadata import (
    add_metadata,
    has_metadata,
    is_metadata,
    metadata_of,
    tokens_of,
)
from grpo_cli.commands.trend.origins import Origins, RecordStep, StepSource
from grpo_cli.commands.trend.sums import StepSums
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import NO_OLD, on_policy_by_default
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.references import References
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.records import BatchFields, DecodedChunk, Raw
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.records.translate import Notices

T = TypeVar("T")

_Evaluated = tuple[Breakdown | MissingColumnError, F64 | None]
"""What became of a chunk, and [R] its rewards."""


@dataclass
class RunSums:
    """The sums of a run by step, and what there is to report of it; it merges.

    Attributes:
        steps: the sums of each step.
        skipped: the records that could not be used.
        notices: notes, each printed once.
        missing: the columns for want of which nothing was evaluated, by the error's text.
        signatures: of the objectives that ran, each with the first step that has it.
        moved: whether a record that was evaluated has log_probs_old.
        origins: the files of each step.
        references: which records have a reference.
    """

    steps: dict[int, StepSums] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)
    notices: Notices = field(default_factory=dict)
    missing: dict[str, MissingColumnError] = field(default_factory=dict)
    signatures: dict[str, int] = field(default_factory=dict)
    moved: bool = False
    origins: Origins = field(default_factory=Origins)
    references: References = field(default_factory=References)

    def of_step(self, step: RecordStep, file: str) -> StepSums:
        """The sums of a step; ``file`` has its first record, where the step is new."""
        known = self.steps.get(step.number)
        if known is None:
            known = self.steps[step.number] = StepSums(file, step.field)
        return known

    def merge(self, later: RunSums) -> None:
        """Adds the records that follow."""
        for number, sums in later.steps.items():
            if number in self.steps:
                self.steps[number].merge(sums)
            else:
                self.steps[number] = sums
        self.skipped.merge(later.skipped)
        self.notices |= later.notices
        self.missing = later.missing | self.missing
        for signature, step in later.signatures.items():
            self.signatures[signature] = min(step, self.signatures.get(signature, step))
        self.moved |= later.moved
        self.origins.merge(later.origins)
        self.references.merge(later.references)


class StepBatch(NamedTuple):
    """Records that follow each other, and the step of each; None for one that cannot be read."""

    steps: list[RecordStep | None]
    decoded: DecodedChunk


@dataclass(frozen=True)
class Task:
    """Adds the records of a piece to the sums of their steps, in any process.

    Attributes:
        evaluator: which objective; with the statistics of each step, where it wants some.
        step_source: how the step of a record is found.
        skip: whether to go on behind a record that cannot be read.
        logged: whether the sums of frameworks' metrics are wanted too.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    evaluator: Evaluator
    step_source: StepSource
    skip: bool
    logged: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> RunSums:
        """The sums of the records in order, up to the first bad one unless it is to be skipped."""
        sums = RunSums(skipped=Skipped(self.most_errors))
        for steps, chunk in self._chunks(decoded, sums):
            if isinstance(chunk, InputError):
                sums.skipped.add(chunk)
            else:
                for found in self._each(steps, chunk, self._evaluate):
                    if isinstance(found, InputError):
                        sums.skipped.add(found)
                    else:
                        self._add(sums, *found)
            if sums.skipped and not self.skip:
                break
        return sums

    def reads(self, key: str) -> bool:
        """Whether the value of a key is needed, though it may not be a column of numbers."""
        return is_metadata(key) or self.step_source.reads(key)

    def measure(self, decoded: Iterable[DecodedChunk]) -> BatchStatistics:
        """The first pass: the statistics of each step. What cannot be used is left out."""
        statistics = BatchStatistics()
        for steps, chunk in self._chunks(decoded, RunSums()):
            if isinstance(chunk, Chunk):
                for found in self._each(steps, chunk, self.evaluator.measure):
                    if not isinstance(found, InputError):
                        statistics.merge(found[2])
        return statistics

    def _evaluate(self, chunk: Chunk) -> _Evaluated:
        try:
            breakdown = self.evaluator.evaluate(chunk)
        except MissingColumnError as missing:
            return missing, rewards_of(chunk, None)
        return breakdown, rewards_of(chunk, breakdown)

    def _each(
        self, steps: list[RecordStep], chunk: Chunk, work: Callable[[Chunk], T]
    ) -> Iterator[tuple[list[RecordStep], Chunk, T] | InputError]:
        """What ``work`` makes of a chunk, each step a batch; of the parts around bad records."""
        done, evaluator = 0, self.evaluator
        batched = evaluator.wants_first_pass or evaluator.measured is not None

        def by_step(part: Chunk) -> T:
            if batched:
                numbers = [step.number for step in steps[done : done + len(part.records)]]
                part = replace(part, of_batches=[batch_of(number) for number in numbers])
            return work(part)

        for found in chunk.each(by_step):
            if isinstance(found, InputError):
                yield found
                done += 1
                continue
            part, result = found
            count = len(part.records)
            yield steps[done : done + count], part, result
            done += count

    def _chunks(
        self, decoded: Iterable[DecodedChunk], sums: RunSums
    ) -> Iterator[tuple[list[RecordStep], Chunk | InputError]]:
        """Records that are evaluated together, with the step of each."""
        waiting: list[Any] = []

        def noted() -> Iterator[DecodedChunk]:
            for few in decoded:
                batch = self._with_steps(few, sums)
                waiting.extend(batch.steps)
                yield batch.decoded

        for chunk in chunks(noted(), with_headers=True):
            count = len(chunk.records) if isinstance(chunk, Chunk) else 1
            yield waiting[:count], chunk
            del waiting[:count]

    def _with_steps(self, decoded: DecodedChunk, sums: RunSums) -> StepBatch:
        """The records and their steps, without those that have only rewards, which are added."""
        items, keys, shown = decoded.items, decoded.keys, decoded.shown
        all_shown = shown is not None and all(
            key in shown for key in filter(self.reads, keys or ())
        )
        metadata = keys is None or has_metadata(keys)
        steps: list[RecordStep | None] = []
        kept: list[Raw | InputError] = []
        before = None
        for at, item in enumerate(items):
            try:
                if isinstance(item, NoLogProbsError):
                    self._add_rewards(item, sums)
                    continue
                if isinstance(item, InputError):
                    raise item
                step = self.step_source.of_record(item, decoded.said(at) if all_shown else ...)
            except InputError as error:
                steps.append(None)
                kept.append(error)
                continue
            if metadata:
                fields = item.value if shown is None else decoded.said(at)
                step = step._replace(metadata=metadata_of(fields))
            if step.number != before:
                sums.origins.add(step.number, item.source, item.line)
                before = step.number
            steps.append(step)
            kept.append(item)
        if len(kept) == len(items) and None not in steps:
            return StepBatch(steps, decoded)
        return StepBatch(steps, DecodedChunk(kept, None if None in steps else keys))

    def _add_rewards(self, item: NoLogProbsError, sums: RunSums) -> None:
        """Adds a record that has no log-probs."""
        source, signal = item.source or "", item.signal
        number = self.step_source.number(signal.step, source, item.line)
        sums.origins.add(number, source, item.line)
        step = RecordStep(number, None if signal.step is None else signal.key)
        sums.of_step(step, source).rows.add(signal.rewards, signal.lengths, signal.group)
        sums.notices[f"only rewards, and lengths where they are told: {item.message}"] = None

    def _add(self, run: RunSums, steps: list[RecordStep], chunk: Chunk, result: _Evaluated) -> None:
        evaluated, rewards = result
        breakdown = None if isinstance(evaluated, MissingColumnError) else evaluated
        if isinstance(evaluated, MissingColumnError):
            run.missing.setdefault(str(evaluated), evaluated)
        else:
            run.signatures.setdefault(evaluated.objective.signature, steps[0].number)
            run.references.add(chunk, self.evaluator.plan, evaluated.objective)
            assumed = on_policy_by_default(evaluated)
            run.moved |= not assumed
            run.notices |= {NO_OLD: None} if assumed else {}
        cuts = [*chunk.batch.cuts(borders([step.number for step in steps]))]
        numbers = ChunkNumbers(chunk, breakdown, rewards, cuts, logged=self.logged)
        for at, cut in enumerate(cuts):
            first = cut.records.start
            sums = run.of_step(steps[first], chunk.records[first].source)
            numbers.add_to(sums, at, self.evaluator.plan.batch)
        for at, (step, record) in enumerate(zip(steps, chunk.records, strict=True)):
            if step.metadata is not None:
                sums = run.of_step(step, record.source)
                add_metadata(sums, step.number, step.metadata, partial(tokens_of, chunk, at))


def batch_of(step: int) -> BatchFields:
    """The batch of the records of a step."""
    return BatchFields(step=step)
