"""Records → the sums of their steps: each is evaluated once, those of small steps together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, repeat
from typing import Any, NamedTuple

from grpo_cli.batch import F64
from grpo_cli.commands.trend.logged_sums import measure_logged
from grpo_cli.commands.trend.measure import Measured
from grpo_cli.commands.trend.origins import Origins
from grpo_cli.commands.trend.said import measure_said, rewards_of, says_more, tells
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.commands.trend.which import StepOf, Told
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.records.translate import Notices

_Evaluated = tuple[Breakdown | MissingColumnError, F64 | None]
"""What became of a chunk, and [R] its rewards."""


@dataclass
class Part:
    """What became of a piece of input: sums by step, and what could not be read.

    ``keys`` are the fields that say a step, by the first record of it; None for a file's name.
    """

    steps: dict[int, Sums] = field(default_factory=dict)
    keys: dict[int, str | None] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)
    notices: Notices = field(default_factory=dict)
    missing: dict[str, MissingColumnError] = field(default_factory=dict)
    signatures: dict[str, int] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)

    def sums(self, step: int, file: str) -> Sums:
        """Those of a step; ``file`` has its first record, where it is new."""
        known = self.steps.get(step)
        if known is None:
            known = self.steps[step] = Sums(file, self.keys.get(step))
        return known


class _Stepped(NamedTuple):
    """Records that follow each other, and the step of each; None beside an error."""

    numbers: list[int | None]
    few: DecodedChunk


@dataclass(frozen=True)
class Task:
    """What is done with the records of a piece, in any process.

    Attributes:
        evaluator: which objective.
        step_of: how records say their step.
        skip: whether to go on behind a record that cannot be read.
        logged: whether the sums of frameworks' metrics are wanted too.
        most_errors: how many errors of such records are kept; 0 for all.
        measured: the statistics of each step from a first pass, where the plan wants one.
    """

    evaluator: Evaluator
    step_of: StepOf
    skip: bool
    logged: bool
    most_errors: int = FEW
    measured: Mapping[int, ExactMoments] | None = None

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Part:
        """Adds records in order; stops at the first bad one unless it is to be skipped."""
        part = Part(skipped=Skipped(self.most_errors))
        for numbers, chunk in self._chunks(decoded, part):
            if isinstance(chunk, InputError):
                part.skipped.add(chunk)
            else:
                self._add(part, numbers, chunk)
            if part.skipped and not self.skip:
                break
        return part

    def beside(self, key: str) -> bool:
        """Whether what stands under a key is needed beside numbers."""
        return tells(key) or self.step_of.reads(key)

    @property
    def apart(self) -> bool:
        """Whether records are evaluated with those of their step alone."""
        return self.logged or self.evaluator.wants_first_pass

    def measure(self, decoded: Iterable[DecodedChunk]) -> dict[int, ExactMoments]:
        """The first pass: the statistics of each step. What cannot be used is left out."""
        found: dict[int, ExactMoments] = {}
        for numbers, chunk in self._chunks(decoded, Part()):
            if isinstance(chunk, Chunk):
                for one in chunk.each(self.evaluator.measure):
                    if not isinstance(one, InputError):
                        found.setdefault(numbers[0], ExactMoments()).merge(one[1])
        return found

    def _chunks(
        self, decoded: Iterable[DecodedChunk], part: Part
    ) -> Iterator[tuple[list[int], Chunk | InputError]]:
        """Records that are evaluated together, with the step of each: small ones of many steps."""
        runs = (run for few in decoded for run in self._stepped(few, part))
        if self.apart:
            runs = (one for run in runs for one in _of_one_step(run))
        for _, together in groupby(runs, key=lambda run: run.numbers[0] if self.apart else None):
            waiting: list[int | None] = []
            for chunk in chunks(_noted(together, waiting), with_headers=True):
                count = len(chunk.records) if isinstance(chunk, Chunk) else 1
                yield [number for number in waiting[:count] if number is not None], chunk
                del waiting[:count]

    def _stepped(self, few: DecodedChunk, part: Part) -> Iterator[_Stepped]:
        """Records with the step of each; in place of those without one stand their errors."""
        says: Iterable[Any] = repeat(...)
        if few.shown is not None and all(
            key in few.shown for key in few.keys or () if self.beside(key)
        ):
            says = map(few.said, range(len(few.items)))
        found = [self._step(*pair, part) for pair in zip(few.items, says, strict=False)]
        numbers = [one.step if isinstance(one, Told) else None for one in found]
        _note_order(part, found, few.items)
        if few.keys is None or says_more(few.keys):
            for at, (number, item) in enumerate(zip(numbers, few.items, strict=True)):
                if number is not None and isinstance(item, Raw):
                    said = item.value if few.shown is None else few.said(at)
                    measure_said(part.sums(number, item.source), number, said)
        if None not in numbers:
            yield _Stepped(numbers, few)
            return
        pairs = zip(found, few.items, strict=True)
        left = [(one, item) for one, item in pairs if one is not None]
        items = [one if isinstance(one, InputError) else item for one, item in left]
        numbers = [one.step if isinstance(one, Told) else None for one, _ in left]
        yield _Stepped(numbers, DecodedChunk(items, None if None in numbers else few.keys))

    def _step(self, item: Raw | InputError, said: Any, part: Part) -> Told | InputError | None:
        """A record's step; None for what cannot be evaluated, of which the rest is kept."""
        try:
            if isinstance(item, Raw):
                return self.step_of.of_record(item, said)
            if not isinstance(item, NoLogProbsError):
                return item
            source = item.source or ""
            step = self.step_of.told(item.signal.step, source, item.line)
            part.origins.add(step, source, item.line)
            part.keys.setdefault(step, None if item.signal.step is None else item.signal.key)
            sums = part.sums(step, source)
            sums.rows.add(item.signal.rewards, item.signal.lengths, item.signal.group)
            part.notices[f"only rewards, and lengths where they are told: {item.message}"] = None
        except InputError as error:
            return error
        return None

    def _add(self, part: Part, numbers: Sequence[int], chunk: Chunk) -> None:
        evaluator = self.evaluator
        if self.measured is not None:
            evaluator = Evaluator(evaluator.plan, self.measured.get(numbers[0]))

        def evaluated(one: Chunk) -> _Evaluated:
            try:
                breakdown = evaluator.evaluate(one)
            except MissingColumnError as missing:
                return missing, rewards_of(one, None)
            return breakdown, rewards_of(one, breakdown)

        done = 0
        for found in chunk.each(evaluated):
            if isinstance(found, InputError):
                part.skipped.add(found)
                done += 1
                continue
            some, result = found
            count = len(some.records)
            self._add_to(part, numbers[done : done + count], some, result)
            done += count

    def _add_to(self, part: Part, numbers: Sequence[int], chunk: Chunk, result: _Evaluated) -> None:
        breakdown, rewards = result
        known = None if isinstance(breakdown, MissingColumnError) else breakdown
        if known is not None:
            part.signatures.setdefault(known.objective.signature, numbers[0])
        if isinstance(breakdown, MissingColumnError):
            part.missing.setdefault(str(breakdown), breakdown)
        cuts = [*chunk.batch.cuts(_borders(numbers))]
        measured = Measured(chunk, known, rewards, cuts)
        for at, cut in enumerate(cuts):
            first = cut.records.start
            sums = part.sums(numbers[first], chunk.records[first].source)
            measured.add_to(sums, at, self.evaluator.plan.batch)
            if self.logged:  # then they are of one step
                measure_logged(sums, chunk, known)


def _borders(numbers: Sequence[int]) -> list[int]:
    """Where the step changes, with the beginning and the end."""
    changes = [at for at, (before, after) in enumerate(pairwise(numbers), 1) if before != after]
    return [0, *changes, len(numbers)]


def _of_one_step(run: _Stepped) -> Iterator[_Stepped]:
    """The same, cut where the step changes."""
    if len(set(run.numbers)) == 1:
        yield run
        return
    pairs = zip(run.numbers, run.few.items, strict=True)
    for number, some in groupby(pairs, key=lambda one: one[0]):
        items = [item for _, item in some]
        yield _Stepped([number] * len(items), DecodedChunk(items, run.few.keys))


def _noted(runs: Iterable[_Stepped], waiting: list[int | None]) -> Iterator[DecodedChunk]:
    """The records alone, their steps being noted in ``waiting``."""
    for numbers, few in runs:
        waiting += numbers
        yield few


def _note_order(
    part: Part,
    found: Sequence[Told | InputError | None],
    items: Sequence[Raw | InputError],
) -> None:
    before = None
    for told, item in zip(found, items, strict=True):
        if isinstance(told, Told) and told.step != before and isinstance(item, Raw):
            part.origins.add(told.step, item.source, item.line)
            part.keys.setdefault(told.step, told.field)
            before = told.step
