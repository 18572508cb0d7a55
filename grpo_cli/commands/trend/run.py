"""Files → steps: every record is evaluated once and added to the sums of its step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from grpo_cli.batch import F64
from grpo_cli.commands.trend.logged_sums import measure_logged
from grpo_cli.commands.trend.measure import measure, measure_said, rewards_of, says_more
from grpo_cli.commands.trend.metrics import StepSums, values
from grpo_cli.commands.trend.names import Read
from grpo_cli.commands.trend.origins import Origins, changes, two_runs
from grpo_cli.commands.trend.shelf import Shelf
from grpo_cli.commands.trend.step import Step, alike
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.commands.trend.which import StepOf
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import Notices
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.variants.plan import Plan

_AUTOMATIC = StepOf()
_Evaluated = tuple[Breakdown | MissingColumnError, F64 | None]
"""What became of a chunk, and [R] its rewards."""


@dataclass
class Part:
    """What became of a piece of input: sums by step, and what could not be read."""

    steps: dict[int, Sums] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)
    notices: Notices = field(default_factory=dict)
    missing: dict[str, MissingColumnError] = field(default_factory=dict)
    signatures: dict[str, int] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)


@dataclass(frozen=True)
class Task:
    """What is done with the records of a piece, in any process.

    Attributes:
        evaluator: which objective.
        step_of: how records say their step.
        skip: whether to go on behind a record that cannot be read.
        most_errors: how many errors of such records are kept; 0 for all.
        measured: the statistics of each step from a first pass, where the plan wants one.
        logged: whether the sums of frameworks' metrics are wanted too.
    """

    evaluator: Evaluator
    step_of: StepOf
    skip: bool
    most_errors: int = FEW
    measured: Mapping[int, ExactMoments] | None = None
    logged: bool = False

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Part:
        """Adds records in order; stops at the first bad one unless it is to be skipped."""
        part = Part(skipped=Skipped(self.most_errors))
        for step, chunk in self._chunks(decoded, part):
            if isinstance(chunk, InputError):
                part.skipped.add(chunk)
            else:
                self._add(part, step, chunk)
            if part.skipped and not self.skip:
                break
        return part

    def measure(self, decoded: Iterable[DecodedChunk]) -> dict[int, ExactMoments]:
        """The first pass: the statistics of each step. What cannot be used is left out."""
        found: dict[int, ExactMoments] = {}
        for step, chunk in self._chunks(decoded, Part()):
            if isinstance(chunk, Chunk):
                for one in chunk.each(self.evaluator.measure):
                    if not isinstance(one, InputError):
                        found.setdefault(step, ExactMoments()).merge(one[1])
        return found

    def _chunks(
        self, decoded: Iterable[DecodedChunk], part: Part
    ) -> Iterator[tuple[int, Chunk | InputError]]:
        runs = (run for few in decoded for run in self._of_steps(few, part))
        for step, same in groupby(runs, key=lambda run: run[0]):
            together = (few for _, few in same)
            for chunk in chunks(together, with_headers=True):
                yield step, chunk
            if part.skipped and not self.skip:
                return

    def _of_steps(self, few: DecodedChunk, part: Part) -> Iterator[tuple[int, DecodedChunk]]:
        """Records that follow each other, cut where the step changes."""
        numbers = [self._step(item, part) for item in few.items]
        _note_order(part.origins, numbers, few.items)
        if few.keys is None or says_more(few.keys):
            for number, item in zip(numbers, few.items, strict=True):
                if number is not None and isinstance(item, Raw):
                    sums = part.steps.setdefault(number, Sums(item.source))
                    measure_said(sums, number, item.value)
        if numbers and numbers[0] is not None and len(set(numbers)) == 1:
            yield numbers[0], few
            return
        for number, pairs in groupby(zip(numbers, few.items, strict=True), key=lambda one: one[0]):
            if number is not None:
                yield number, DecodedChunk([item for _, item in pairs], few.keys)

    def _step(self, item: Raw | InputError, part: Part) -> int | None:
        """A record's step; None for what cannot be evaluated, of which the rest is kept."""
        try:
            if isinstance(item, Raw):
                return self.step_of(item)
            if not isinstance(item, NoLogProbsError):
                part.skipped.add(item)
                return None
            source = item.source or ""
            step = self.step_of.told(item.signal.step, source, item.line)
            part.origins.add(step, source, item.line)
            sums = part.steps.setdefault(step, Sums(source))
            sums.rows.add(item.signal.rewards, item.signal.lengths, item.signal.group)
            sums.counts["records"] += 1
            part.notices[f"only rewards, and lengths where they are told: {item.message}"] = None
        except InputError as error:
            part.skipped.add(error)
        return None

    def _add(self, part: Part, step: int, chunk: Chunk) -> None:
        evaluator = self.evaluator
        if self.measured is not None:
            evaluator = Evaluator(evaluator.plan, self.measured.get(step))

        def evaluated(one: Chunk) -> _Evaluated:
            try:
                breakdown = evaluator.evaluate(one)
            except MissingColumnError as missing:
                return missing, rewards_of(one, None)
            return breakdown, rewards_of(one, breakdown)

        for found in chunk.each(evaluated):
            if isinstance(found, InputError):
                part.skipped.add(found)
                continue
            whole, result = found
            if step not in part.steps:
                part.steps[step] = Sums(whole.records[0].source)
            self._add_to(part, step, whole, result)

    def _add_to(self, part: Part, step: int, chunk: Chunk, result: _Evaluated) -> None:
        sums, (breakdown, rewards) = part.steps[step], result
        known = None if isinstance(breakdown, MissingColumnError) else breakdown
        if self.logged:
            measure_logged(sums, chunk, known)
        if isinstance(breakdown, MissingColumnError):
            part.missing.setdefault(str(breakdown), breakdown)
            measure(sums, chunk, None, rewards)
            return
        if sums.totals is None:
            sums.totals = Totals(self.evaluator.plan.batch)
        sums.totals.add(breakdown)
        part.signatures.setdefault(breakdown.objective.signature, step)
        measure(sums, chunk, breakdown, rewards)


def _note_order(
    origins: Origins, numbers: Sequence[int | None], items: Sequence[Raw | InputError]
) -> None:
    before = None
    for number, item in zip(numbers, items, strict=True):
        if number is not None and number != before and isinstance(item, Raw):
            origins.add(number, item.source, item.line)
            before = number


class Run:
    """Reads a run; iterate it for its steps, by number.

    The steps are the same to the bit whatever the reader's ``jobs`` and ``block_bytes`` are.

    Attributes:
        skipped: the records that could not be used.
        notices: what is told once.
        missing: the columns for want of which nothing was evaluated, by what is said of them.
        signatures: of the objectives that ran, each with the first step that has it.
        logged: step → what a framework would have logged, where names are asked for.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        step_of: StepOf = _AUTOMATIC,
        names: Mapping[str, Read] | None = None,
        *,
        one_run: bool = False,
        command: str = "trend",
    ) -> None:
        """``one_run``: files are of one run, whatever their paths say; ``command``: who asks."""
        self._command = command
        self._reader, self._names = reader, names or {}
        self._one_run = one_run or step_of.files is not None
        task = Task(Evaluator(plan), step_of, reader.skip, reader.most_errors)
        self._task = replace(task, logged=names is not None)
        self._shelf = Shelf(self._made)
        self.skipped = Skipped(reader.most_errors)
        self.notices: Notices = {}
        self.missing: dict[str, MissingColumnError] = {}
        self.signatures: dict[str, int] = {}
        self._origins = Origins()
        self.logged: dict[int, dict[str, float | None]] = {}

    def read(self) -> list[Step]:
        """Reads the files.

        Raises:
            InputError: at the first record that cannot be used, unless it is to be skipped.
            UsageError: where files are of several runs.
        """
        task = self._task = self._with_statistics()
        for _, part in self._reader.map(task):
            self._origins.merge(part.origins)
            if self._origins.clash is not None and not self._one_run:
                raise two_runs(self._origins.clash, self._reader.paths, self._command)
            for step, sums in part.steps.items():
                self._shelf.add(step, sums)
            self.notices |= part.notices
            self.missing = part.missing | self.missing
            for signature, step in part.signatures.items():
                self.signatures[signature] = min(step, self.signatures.get(signature, step))
            if part.skipped and not self._reader.skip:
                raise part.skipped.first[0]
            self.skipped.merge(part.skipped)
        if self._reader.reading.selects and not self._shelf and not self.skipped:
            raise self._reader.nothing()
        told = [*self._origins.returns(), *changes(self.signatures)]
        self.notices |= dict.fromkeys(told)
        shared = {file for file, count in Counter(self._shelf.files.values()).items() if count > 1}
        found = (step for _, step in self._shelf.made())
        return alike([replace(one, shares_file=one.file in shared) for one in found])

    def _made(self, number: int, sums: Sums) -> Step:
        """A step, from all of its records, or those that were read until now."""
        own = StepSums(sums)
        if self._names:
            self.logged[number] = {name: read(own) for name, read in self._names.items()}
        return step_from(number, sums, shares_file=False)

    @property
    def measured(self) -> Mapping[int, ExactMoments]:
        """The statistics of each step that was read, where the plan wants some."""
        return self._task.measured or {}

    def _with_statistics(self) -> Task:
        task = self._task
        if not task.evaluator.wants_first_pass:
            return task
        self._reader.keep_input()
        measured: dict[int, ExactMoments] = {}
        for _, part in self._reader.map(task.measure):
            for step, moments in part.items():
                measured.setdefault(step, ExactMoments()).merge(moments)
        return replace(task, measured=measured)


def steps(reader: Reader, plan: Plan, step_of: StepOf = _AUTOMATIC) -> list[Step]:
    """The steps of a run, by number.

    Raises:
        InputError: at the first record that cannot be used, unless it is to be skipped.
    """
    return Run(reader, plan, step_of).read()


def step_from(number: int, sums: Sums, *, shares_file: bool) -> Step:
    """The numbers of a step."""
    return Step(number, sums.file, values(sums), dict(sums.worst), shares_file)
