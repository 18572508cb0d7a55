"""Files → steps: every record is evaluated once and added to the sums of its step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.measure import ChunkSums, rewards_of, sums_of_rewards
from grpo_cli.commands.trend.metadata import is_metadata, metadata_of
from grpo_cli.commands.trend.metrics import StepValues, functions
from grpo_cli.commands.trend.names import logged_values
from grpo_cli.commands.trend.origins import (
    Origins,
    RecordStep,
    StepSource,
    two_runs,
)
from grpo_cli.commands.trend.step import NotFinite, Steps
from grpo_cli.commands.trend.sums import StepSums, joined, shortened
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import NO_OLD, StatisticsSums, on_policy_by_default
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.facts import GIVEN_ALONE
from grpo_cli.engine.fold import Accumulator, first_pass, fold_pieces
from grpo_cli.engine.references import References, without_kl
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.choose.grouping import FILE
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan

_NOT_FINITE = re.compile(r"expected a finite number, got (NaN|-?inf)\b|not finite: |overflows$")
_MOST = 256
"""Tables of sums that wait to be joined."""

Evaluated = tuple[Breakdown | MissingColumnError, F64 | None]
"""What became of a chunk, and [R] its rewards."""


@dataclass
class RunSums(Accumulator[Evaluated]):
    """The sums of a run by step, and what there is to report of it.

    Attributes:
        evaluator: which objective; with the statistics of each step, where it wants some.
        step_source: how the step of a record is found.
        logged: whether the sums of frameworks' metrics are wanted too.
        tables: the sums of the steps; together, where a step is in several.
        notices: notes, each printed once.
        missing: the missing columns that kept records from being evaluated, by the error's text.
        lacking: how many records that was so of.
        signatures: of the objectives that ran.
        moved: whether a record that was evaluated has log_probs_old.
        origins: the files of each step.
        references: which records have a reference.
        parts: row of the sums → the part and the step that it is of, where steps have parts.
        broken: row of the sums → the error of its first record with NaN.
        marks: the records at which another step begins, while they are read.
        step_fields: those that hold the step of some record; None: the file's name does.
    """

    evaluator: Evaluator
    step_source: StepSource
    logged: bool = False
    tables: list[StepSums] = field(default_factory=list)
    notices: Notices = field(default_factory=dict)
    missing: dict[str, MissingColumnError] = field(default_factory=dict)
    lacking: int = 0
    signatures: dict[str, None] = field(default_factory=dict)
    moved: bool = False
    origins: Origins = field(default_factory=Origins)
    references: References = field(default_factory=References)
    parts: dict[int, tuple[Any, int]] = field(default_factory=dict)
    broken: dict[int, InputError] = field(default_factory=dict)
    marks: list[tuple[str, int | None, RecordStep]] = field(default_factory=list)
    step_fields: dict[str | None, None] = field(default_factory=dict)

    headers = True
    bundles: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("evaluator", "step_source", "logged")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together, each with its step as its batch."""
        return super().chunks(map(self.with_steps, decoded))

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Adds records; of those with NaN, which training went through, only that they are there.

        It yields the errors of all others that cannot be used.
        """
        for error in super().read(decoded):
            line = error.line or 0
            marks = (
                step
                for source, first, step in reversed(self.marks)
                if source == error.source and first is not None and first <= line
            )
            step = next(marks, None) if _NOT_FINITE.search(error.message) else None
            if step is None:
                yield error
            else:
                sums = StepSums.without_responses(step.row, (error.source or "", step.field))
                sums.add_count("left_out", np.ones(1, dtype=np.int64))
                self.add_tables(sums)
                self.broken.setdefault(step.row, error)
        self.marks.clear()

    def evaluate(self, chunk: Chunk) -> Evaluated:
        """The chunk's breakdown, or the column that it lacks, and its rewards."""
        try:
            breakdown = self.evaluator.evaluate(chunk)
        except MissingColumnError as missing:
            return missing, rewards_of(chunk, None)
        return breakdown, rewards_of(chunk, breakdown)

    def add(self, chunk: Chunk, found: Evaluated) -> None:
        """Adds the records of a chunk to the sums of their steps."""
        evaluated, rewards = found
        steps: list[RecordStep] = chunk.of_batches  # type: ignore[assignment]  # of with_steps
        plan, breakdown = self.evaluator.plan, None
        if isinstance(evaluated, MissingColumnError):
            self.missing.setdefault(str(evaluated), evaluated)
            self.lacking += len(steps)
        else:
            breakdown = evaluated
            self.signatures |= dict.fromkeys(breakdown.objective.signatures(len(steps)))
            self.references.add(chunk, plan, breakdown.objective)
            assumed = on_policy_by_default(breakdown)
            self.moved |= not assumed
            self.notices |= {NO_OLD: None} if assumed else {}
        sums = ChunkSums(chunk, breakdown, rewards, plan.batch, logged=self.logged).sums
        self.add_tables(shortened(sums))

    def with_steps(self, decoded: DecodedChunk) -> DecodedChunk:
        """The records, each with its step as its batch; errors in the places of those without one.

        Those that have only rewards are left out and added to the sums, as the files of all are.
        """
        metadata = decoded.keys is None or any(map(is_metadata, decoded.keys))
        kept: list[Raw | InputError] = []
        rewards: list[tuple[RecordStep, NoLogProbsError]] = []
        before = None
        for item in decoded.items:
            try:
                if isinstance(item, NoLogProbsError):
                    rewards.append((self._step_of_rewards(item), item))
                    continue
                if isinstance(item, InputError):
                    raise item
                step = self.step_source.of_record(item)
            except InputError as error:
                kept.append(error)
                continue
            self.step_fields[step.field] = None
            if step.row != before:
                self.origins.add(step.number, item.source, item.line)
                self.marks.append((item.source, item.line, step))
                before = step.row
            if metadata:
                step.metadata = metadata_of(item.value)
            if self.step_source.by is not None and item.batch is not None:
                self.set_part(step, next(iter(item.batch.values())))
            item.batch = step
            kept.append(item)
        if rewards:
            self.add_tables(sums_of_rewards(rewards))
        failed = any(isinstance(item, InputError) for item in kept)
        return DecodedChunk(kept, None if failed else decoded.keys)

    def _step_of_rewards(self, record: NoLogProbsError) -> RecordStep:
        """The step of a record that has no log-probs.

        Raises:
            InputError: if nothing gives it.
        """
        source, signal = record.source or "", record.signal
        number = self.step_source.number(signal.step, source, record.line)
        step = RecordStep(number, None if signal.step is None else signal.key)
        self.origins.add(number, source, record.line)
        note = f"only rewards (and lengths, if given) are computed: {record.message}"
        self.notices[note] = None
        if self.step_source.by is not None:
            self.set_part(step, source if self.step_source.by == (FILE,) else signal.group)
        return step

    def set_part(self, step: RecordStep, part: Any) -> None:
        """Has a step be of a part."""
        step.set_part(part)
        self.parts[step.row] = part, step.number

    def add_tables(self, *tables: StepSums) -> None:
        """Adds sums of records that follow."""
        self.tables += tables
        if len(self.tables) > _MOST:
            self.tables = [joined(self.tables)]

    def merge(self, later: RunSums) -> None:
        """Adds the records that follow."""
        self.add_tables(*later.tables)
        self.notices |= later.notices
        self.missing = later.missing | self.missing
        self.lacking += later.lacking
        self.signatures |= later.signatures
        self.moved |= later.moved
        self.origins.merge(later.origins)
        self.references.merge(later.references)
        self.parts |= later.parts
        self.step_fields |= later.step_fields
        self.broken = later.broken | self.broken


@dataclass
class StepStatistics(StatisticsSums):
    """The statistics of each step that an evaluator needs before it evaluates."""

    step_source: StepSource = field(default_factory=StepSource)

    bundles: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("evaluator", "step_source")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together, each with its step as its batch."""
        return super().chunks(map(RunSums(self.evaluator, self.step_source).with_steps, decoded))


def _broken_columns(
    numbers: Sequence[int], broken: Mapping[int, InputError]
) -> dict[str, NotFinite]:
    """Column, or the objective → where it is not finite: the steps' places, the first in words."""
    found: dict[str, NotFinite] = {}
    for row, error in sorted(broken.items()):
        value = error.message.partition(", got ")[2].partition(";")[0]
        column = error.path.rpartition(".")[2].partition("[")[0] if value else "objective"
        words = f"{error.path} is {value}" if value else f"{error.message} in {error.path}"
        where = f"{words} ({error.source}:{error.line}, ignored)"
        known = found.get(column, NotFinite((), where))
        found[column] = known._replace(places=[*known.places, numbers.index(row)])
    return found


_AUTOMATIC = StepSource()


class Run:
    """Reads a run: its steps, by number.

    They are the same to the bit whatever the reader's ``jobs`` and ``block_bytes`` are.

    Attributes:
        notices, missing, signatures, moved: as ``RunSums`` has them.
        reader: of the files.
        plan: the objective.
        step_source: how the step of a record is found.
        parts: row → part and step, where steps have parts; a step's number is its row's then.
        logged: what the framework ``names`` would have logged: name → [S].
        statistics: those of each step, where the plan wants some.
        alone: the note where records are not grouped that ought to be.
        ungrouped: that note where no gradient is left because records are not grouped.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        step_source: StepSource = _AUTOMATIC,
        names: str | None = None,
        *,
        one_run: bool = False,
    ) -> None:
        """``one_run``: files are of one run, whatever their paths say."""
        self.reader, self.plan = reader, plan
        self._names, self.step_source = names, step_source
        self.one_run = one_run or step_source.files is not None
        self.statistics: BatchStatistics | None = None
        self.logged: dict[str, F64] = {}
        self.parts: dict[int, tuple[Any, int]] = {}
        self._lacking = ""
        self.alone: str | None = None
        self.ungrouped: str | None = None

    @property
    def lacks(self) -> Notices:
        """Notes on what is missing, so that the objective was not evaluated."""
        whole = f" of {self._lacking}" if self._lacking else ""
        return {
            f"loss, KL and ratios are not computed{whole}: {one}": None
            for one in self.missing.values()
        }

    def read(self) -> Steps:
        """Reads the files.

        Raises:
            InputError: at the first record that cannot be used, unless it is to be skipped.
            UsageError: where files are of several runs.
        """
        plan = self.plan
        self.reader.keep_input()
        found = self._sums(Evaluator(plan))
        error = found.references.error
        if error is not None:  # some records have a reference, so the KL is not left out
            found = self._sums(Evaluator(plan, needs_reference=True))
            others = {key: one for key, one in found.missing.items() if one.path != "log_probs_ref"}
            found.missing = {str(error): error, **others}  # it has the record's place
        self.step_source = replace(self.step_source, fields=(*found.step_fields,))
        self.missing = found.missing
        self.signatures, self.moved, self.parts = found.signatures, found.moved, found.parts
        self.notices: Notices = found.notices | dict.fromkeys(found.origins.returns())
        self.notices |= without_kl([plan] if found.references.lacking is not None else [])
        sums = joined(found.tables or [sums_of_rewards([])])
        evaluated, responses = (int(sums.count(one).sum()) for one in ("records", "samples"))
        if evaluated:
            self._lacking = f"{found.lacking:,} of {found.lacking + evaluated:,} records"
        if plan.compares_groups:
            given = any("|adv:given" in one for one in found.signatures)
            groups, why = sums.columns["row", "label"].widths.sum(), GIVEN_ALONE if given else ""
            alone = self.reader.ungrouped(evaluated, int(groups), responses, why)
            self.notices |= {} if alone is None else {alone: None}
            self.alone, self.ungrouped = alone, None if given else alone
        steps = Steps.of(sums)
        broken = _broken_columns(steps.numbers, found.broken)
        steps.not_finite = {**steps.not_finite, **broken}
        if self._names is not None:
            self.logged = logged_values(self._names, StepValues(sums))
        if self._names == "trl":  # which calls reward functions as we do
            self.logged |= {name: steps.metrics[name] for name in functions(steps.metrics)}
        return steps

    def _sums(self, evaluator: Evaluator) -> RunSums:
        """The sums of all records."""
        if evaluator.wanted:
            statistics = partial(StepStatistics, evaluator, step_source=self.step_source)
            self.statistics = first_pass(self.reader, statistics).found
            evaluator = evaluator.after(self.statistics)
        logged = self._names is not None
        make = partial(RunSums, evaluator, self.step_source, logged=logged)
        run = make()
        for run in fold_pieces(self.reader, make):
            if run.origins.clash is not None and not self.one_run:
                break
        clash = run.origins.two_runs()
        if clash is not None and not self.one_run:
            raise two_runs(clash, self.reader.paths)
        return run
