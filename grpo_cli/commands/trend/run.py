"""Files → steps: every record is evaluated once and added to the sums of its step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.measure import ChunkSums, rewards_of, sums_of_rewards
from grpo_cli.commands.trend.metadata import ENVIRONMENTS, is_metadata, metadata_of
from grpo_cli.commands.trend.metrics import StepValues, functions
from grpo_cli.commands.trend.names import logged_values, token_means
from grpo_cli.commands.trend.origins import (
    Origins,
    RecordStep,
    SeveralRunsError,
    StepSource,
    run_of,
    two_runs,
)
from grpo_cli.commands.trend.settings import SignedSteps, Span, setting_changes
from grpo_cli.commands.trend.step import NotFinite, Steps
from grpo_cli.commands.trend.sums import StepSums, joined, shortened
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import NO_OLD, StatisticsSums, on_policy_by_default
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.facts import GIVEN_ALONE, InputFacts
from grpo_cli.engine.fold import Accumulator, first_pass, fold_pieces
from grpo_cli.engine.references import References, without_kl
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.choose.grouping import FILE
from grpo_cli.records.choose.where import hashable
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan

_NOT_FINITE = re.compile(r"expected a finite number, got (NaN|-?inf)\b")
_MOST = 256
"""Tables of sums that wait to be joined."""

Evaluated = tuple[Breakdown | MissingColumnError, F64 | None]
"""What became of a chunk, and [R] its rewards."""

PART_FIELDS = ("rank", *ENVIRONMENTS)
"""Fields of records of whose values one alone may have changed."""
_MOST_IDS = 100_000
"""Ids that are kept: prompts recur in the order in which they came, so the first come again."""
_MOST_PARTS = 256
"""Values, beyond which a field is no part of a run but a name of its records."""


@dataclass
class RunSums(Accumulator[Evaluated]):
    """The sums of a run by step, and what there is to report of it.

    Attributes:
        evaluator: which objective; with the statistics of each step, where it wants some.
        step_source: how the step of a record is found.
        logged: whether the sums of frameworks' metrics are wanted too.
        tables: the sums of the steps; together, where a step is in several.
        notices: notes, each printed once.
        missing: the columns for want of which nothing was evaluated, by the error's text.
        lacking: how many records that was so of.
        signatures: of the objectives that ran, each with the steps that have it.
        moved: whether a record that was evaluated has log_probs_old.
        origins: the files of each step.
        references: which records have a reference.
        parts: row of the sums → the part and the step that it is of, where steps have parts; or
            the pass and the step, of steps that were trained again after a resume.
        broken: row of the sums → the error of its first record with NaN.
        fields: those of ``PART_FIELDS`` that records have → their values, up to a limit.
        marks: the records at which another step begins, while they are read.
        ids: file and id of records → their step, of the first of them.
        repeats_ids: whether records of several steps of a file have one id.
        step_fields: those that hold the step of some record; None: the file's name does.
    """

    evaluator: Evaluator
    step_source: StepSource
    logged: bool = False
    tables: list[StepSums] = field(default_factory=list)
    notices: Notices = field(default_factory=dict)
    missing: dict[str, MissingColumnError] = field(default_factory=dict)
    lacking: int = 0
    signatures: dict[str, SignedSteps] = field(default_factory=dict)
    moved: bool = False
    origins: Origins = field(default_factory=Origins)
    references: References = field(default_factory=References)
    parts: dict[int, tuple[Any, int]] = field(default_factory=dict)
    broken: dict[int, InputError] = field(default_factory=dict)
    fields: dict[str, set[Any]] = field(default_factory=dict)
    marks: list[tuple[str, int | None, RecordStep]] = field(default_factory=list)
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    repeats_ids: bool = False
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
            elif not (self.step_source.by and self._abandoned(step, error)):
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
        pairs = zip(chunk.records, steps, strict=True)
        self._note_ids(
            ((one.source, str(one.id)), step.number) for one, step in pairs if one.id is not None
        )
        if isinstance(evaluated, MissingColumnError):
            self.missing.setdefault(str(evaluated), evaluated)
            self.lacking += len(steps)
        else:
            breakdown = evaluated
            objective = breakdown.objective
            places: dict[str, list[int]] = {}
            for at, signature in enumerate(objective.signatures(len(steps))):
                places.setdefault(signature, []).append(at)
            for signature, (first, *more) in places.items():
                numbers = [steps[at].number for at in (first, *more)]
                known, span = self.signatures.get(signature), Span(min(numbers), max(numbers))
                parts = known.parts if known else objective.parts_of(slice(first, first + 1))
                self.signatures[signature] = SignedSteps(parts, span).join(known)
            self.references.add(chunk, plan, breakdown.objective)
            assumed = on_policy_by_default(breakdown)
            self.moved |= not assumed
            self.notices |= {NO_OLD: None} if assumed else {}
        sums = ChunkSums(chunk, breakdown, rewards, plan.batch, logged=self.logged).sums
        self.add_tables(shortened(sums))

    def _note_ids(self, found: Iterable[tuple[tuple[str, str], int]]) -> None:
        """Notes the steps of ids, up to one that another step has too."""
        known = self.ids
        for name, step in () if self.repeats_ids else found:
            first = known.get if len(known) >= _MOST_IDS else known.setdefault
            if first(name, step) != step:
                self.repeats_ids = True
                return

    def with_steps(self, decoded: DecodedChunk) -> DecodedChunk:
        """The records, each with its step as its batch; errors in the places of those without one.

        Those that have only rewards are left out and added to the sums, as the files of all are.
        """
        metadata = decoded.keys is None or any(map(is_metadata, decoded.keys))
        self._note_parts(decoded)
        kept: list[Raw | InputError] = []
        rewards: list[tuple[RecordStep, NoLogProbsError]] = []
        before = None
        for item in decoded.items:
            try:
                if isinstance(item, NoLogProbsError):
                    rewards += self._step_of_rewards(item)
                    continue
                if isinstance(item, InputError):
                    raise item
                step = self.step_source.of_record(item)
            except InputError as error:
                kept.append(error)
                continue
            self.step_fields[step.field] = None
            abandoned = self._abandoned(step, item)
            if step.row != before:
                if not abandoned:
                    self.origins.add(step.number, item.source, item.line)
                self.marks.append((item.source, item.line, step))
                before = step.row
            if abandoned and self.step_source.by is not None:
                continue
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

    def _note_parts(self, decoded: DecodedChunk) -> None:
        """Notes the values of the fields of which one may be a part of the run."""
        values = (one.value for one in decoded.items if isinstance(one, Raw))
        objects = [value for value in values if isinstance(value, dict)]
        for name in PART_FIELDS if objects else ():
            if name not in objects[0]:
                continue
            known = self.fields.setdefault(name, set())
            for one in objects:
                if len(known) > _MOST_PARTS:
                    break
                value = one.get(name)
                for each in value if isinstance(value, list) else [value] * (name in one):
                    with suppress(InputError):  # nested too deeply for a name
                        known.add(hashable(each))

    def _abandoned(self, step: RecordStep, item: Raw | InputError) -> int:
        """The pass of a record whose step was trained again, which has a row of its own; else 0.

        Parts of a step (``by``) are of its last pass alone.
        """
        number = self.step_source.abandoned_pass(step.number, item.source or "", item.line)
        if number and self.step_source.by is None:
            step["pass"] = number
            self.set_part(step, number)
        return number

    def _step_of_rewards(
        self, record: NoLogProbsError
    ) -> Iterator[tuple[RecordStep, NoLogProbsError]]:
        """The step of a record that has no log-probs, and it.

        Raises:
            InputError: if nothing gives it.
        """
        source, signal = record.source or "", record.signal
        number = self.step_source.number(signal.step, source, record.line)
        step = RecordStep(number, None if signal.step is None else signal.key)
        abandoned = self._abandoned(step, record)
        if not abandoned:
            self.origins.add(number, source, record.line)
        if not (abandoned and self.step_source.by):
            note = f"only rewards (and lengths, if given) are computed: {record.message}"
            self.notices[note] = None
            if self.step_source.by is not None:
                self.set_part(step, source if self.step_source.by == (FILE,) else signal.group)
            yield step, record

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
        for signature, one in later.signatures.items():
            self.signatures[signature] = one.join(self.signatures.get(signature))
        self.moved |= later.moved
        self.origins.merge(later.origins)
        self.references.merge(later.references)
        self.parts |= later.parts
        self.repeats_ids |= later.repeats_ids
        self.step_fields |= later.step_fields
        self._note_ids(later.ids.items())
        self.broken = later.broken | self.broken
        for field_name, values in later.fields.items():
            if len(known := self.fields.setdefault(field_name, set())) <= _MOST_PARTS:
                known |= values


@dataclass
class StepStatistics(StatisticsSums):
    """The statistics of each step that an evaluator needs before it evaluates."""

    step_source: StepSource = field(default_factory=StepSource)

    bundles: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("evaluator", "step_source")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together, each with its step as its batch."""
        return super().chunks(map(RunSums(self.evaluator, self.step_source).with_steps, decoded))


def steps_of(
    sums: StepSums,
    parts: Mapping[int, tuple[Any, int]],
    broken: Mapping[int, InputError],
    source: StepSource,
) -> Steps:
    """The steps of a run as it went on; those of every pass are their ``whole``.

    Args:
        sums: a row for each step and pass, or each step and part.
        parts, broken: as ``RunSums`` has them.
        source: how the step of a record was found.
    """
    if not parts or source.by is not None:
        steps = Steps.of(sums)
    else:
        known = [parts.get(row, (source.last_pass(row), row)) for row in sums.numbers.tolist()]
        order = np.array(sorted(range(len(known)), key=known.__getitem__))
        passes, numbers = zip(*(known[at] for at in order), strict=True)
        whole = Steps.of(replace(sums.taken(order), numbers=np.array(numbers)))
        found = broken_columns(sums.numbers[order].tolist(), broken)
        whole.not_finite = {**whole.not_finite, **found}
        steps = whole.in_passes(passes)
    steps.not_finite = {**steps.not_finite, **broken_columns(steps.numbers, broken)}
    return steps


def broken_columns(
    numbers: Sequence[int], broken: Mapping[int, InputError]
) -> dict[str, NotFinite]:
    """Column → where it has NaN: the steps' places, and the first record in words."""
    found: dict[str, NotFinite] = {}
    for row, error in sorted(broken.items()):
        if row not in numbers:
            continue  # of another pass
        value = error.message.partition(", got ")[2].partition(";")[0]
        where = f"{error.path} is {value} ({error.source}:{error.line}, ignored)"
        column = error.path.rpartition(".")[2].partition("[")[0]
        known = found.get(column, NotFinite((), where))
        found[column] = known._replace(places=[*known.places, numbers.index(row)])
    return found


_AUTOMATIC = StepSource()


def ungrouped(sums: StepSums, facts: InputFacts, *, given: bool) -> str | None:
    """That records that ought to be a group are not; ``given``: their advantages are given."""
    records, responses = (int(sums.count(one).sum()) for one in ("records", "samples"))
    groups = int(sums.columns["row", "label"].widths.sum())
    return facts.ungrouped(records, groups, responses, GIVEN_ALONE if given else "")


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
        token_means: means over all tokens of what that averages by micro-batch: name → [S].
        statistics: those of each step, where the plan wants some.
        fields: those of ``PART_FIELDS`` of which records have several values, but not many.
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
        command: str = "trend",
    ) -> None:
        """``one_run``: files are of one run, whatever their paths say; ``command``: who asks."""
        self.reader, self.plan, self._command = reader, plan, command
        self._names, self.step_source = names, step_source
        self.one_run = one_run or step_source.files is not None
        self.statistics: BatchStatistics | None = None
        self.logged: dict[str, F64] = {}
        self.token_means: dict[str, F64] = {}
        self.parts: dict[int, tuple[Any, int]] = {}
        self._lacking = ""
        self.alone: str | None = None
        self.ungrouped: str | None = None
        self.fields: Sequence[str] = ()

    @property
    def lacks(self) -> Notices:
        """Notes on what is missing, so that the objective was not evaluated."""
        whole = f" of {self._lacking}" if self._lacking else ""
        return {
            f"loss, KL and ratios are not computed{whole}: {one}": None
            for one in self.missing.values()
        }

    def read_each(self) -> list[Steps]:
        """The steps of each run among the files, by their names."""
        several: dict[str, list[str]] = {}
        for path in self.reader.paths:
            several.setdefault("" if self.one_run else run_of(path), []).append(path)
        how, found = (self.plan, self.step_source), list[Steps]()
        for files in several.values():
            try:
                found.append(Run(self.reader.only({}, files), *how, one_run=self.one_run).read())
            except SeveralRunsError:
                found += [Run(self.reader.only({}, [one]), *how).read() for one in files]
        return found

    def read(self) -> Steps:
        """Reads the files.

        Raises:
            InputError: at the first record that cannot be used, unless it is to be skipped.
            UsageError: where files are of several runs.
        """
        plan = self.plan
        self.reader.keep_input()
        found = self._sums(Evaluator(plan))
        notes = [*found.origins.returns(resumed=not self.one_run)]
        if not self.one_run and (back := found.origins.resumed()):
            self.step_source = replace(self.step_source, resumed=back)
            found = self._sums(Evaluator(plan))
        error = found.references.error
        if error is not None:  # some records have a reference, so the KL is not left out
            found = self._sums(Evaluator(plan, needs_reference=True))
            others = {key: one for key, one in found.missing.items() if one.path != "log_probs_ref"}
            found.missing = {str(error): error, **others}  # it has the record's place
        self.step_source = replace(self.step_source, fields=(*found.step_fields,))
        self.missing = found.missing
        several = {name for name, one in found.fields.items() if 1 < len(one) <= _MOST_PARTS}
        self.fields = sorted(several, key=PART_FIELDS.index)
        self.signatures, self.moved, self.parts = found.signatures, found.moved, found.parts
        self.notices: Notices = found.notices | dict.fromkeys(notes)
        self.notices |= without_kl([plan] if found.references.lacking is not None else [])
        sums = joined(found.tables or [sums_of_rewards([])])
        if evaluated := int(sums.count("records").sum()):
            self._lacking = f"{found.lacking:,} of {found.lacking + evaluated:,} records"
        if self.reader.reading.grouping is None and plan.compares_groups:
            given = any("|adv:given" in one for one in found.signatures)
            alone = ungrouped(sums, self.reader.facts, given=given)
            self.notices |= {} if alone is None else {alone: None}
            self.alone, self.ungrouped = alone, None if given else alone
        steps = steps_of(sums, found.parts, found.broken, self.step_source)
        steps.repeats_ids = steps.whole.repeats_ids = found.repeats_ids
        steps.settings, changed = setting_changes(found.signatures, steps.numbers)
        self.notices |= {changed: None} if changed else {}
        if self._names is not None:
            last = [row not in found.parts for row in sums.numbers.tolist()]
            own = sums.taken(np.flatnonzero(last))
            self.logged = logged_values(self._names, StepValues(own))
            self.token_means = token_means(self._names, StepValues(own))
        if self._names == "trl":  # which calls reward functions as we do
            self.logged |= {name: steps.metrics[name] for name in functions(steps.metrics)}
        return steps

    def _sums(self, evaluator: Evaluator) -> RunSums:
        """The sums of all records."""
        if evaluator.wanted:
            statistics = partial(StepStatistics, evaluator, step_source=self.step_source)
            self.statistics = first_pass(self.reader, statistics).found
            evaluator = evaluator.after(self.statistics)
        make = partial(RunSums, evaluator, self.step_source, logged=self._names is not None)
        run = make()
        for run in fold_pieces(self.reader, make):
            if run.origins.clash is not None and not self.one_run:
                break
        clash = run.origins.two_runs()
        if clash is not None and not self.one_run:
            raise two_runs(clash, self.reader.paths, self._command)
        return run
