"""Records → the sums of their steps: each is evaluated once, those of small steps together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from grpo_cli.batch import F64
from grpo_cli.commands.trend.logged_sums import measure_logged
from grpo_cli.commands.trend.measure import Measured
from grpo_cli.commands.trend.origins import Origins
from grpo_cli.commands.trend.said import measure_said, more, rewards_of, says_more
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.commands.trend.which import StepOf, Told
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import NO_OLD, on_policy_by_default
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.references import References
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.records.translate import Notices

_Evaluated = tuple[Breakdown | MissingColumnError, F64 | None]
"""What became of a chunk, and [R] its rewards."""


@dataclass
class Part:
    """What became of a piece of input: sums by step, and what could not be read.

    Attributes:
        moved: whether a record that was evaluated has log_probs_old.
    """

    steps: dict[int, Sums] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)
    notices: Notices = field(default_factory=dict)
    missing: dict[str, MissingColumnError] = field(default_factory=dict)
    signatures: dict[str, int] = field(default_factory=dict)
    moved: bool = False
    origins: Origins = field(default_factory=Origins)
    references: References = field(default_factory=References)

    def sums(self, told: Told, file: str) -> Sums:
        """Those of a step; ``file`` has its first record, where it is new."""
        known = self.steps.get(told.step)
        if known is None:
            known = self.steps[told.step] = Sums(file, told.field)
        return known


class _Own(NamedTuple):
    """A record's step, None beside an error, and what ``measure_said`` adds of the record."""

    told: Told | None
    said: Mapping[str, Any] | None

    @property
    def step(self) -> int | None:
        """Its number."""
        return None if self.told is None else self.told.step


class _Stepped(NamedTuple):
    """Records that follow each other, and what is known of each."""

    own: list[_Own]
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
    measured: Mapping[int, BatchStatistics] | None = None

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Part:
        """Adds records in order; stops at the first bad one unless it is to be skipped."""
        part = Part(skipped=Skipped(self.most_errors))
        for own, chunk in self._chunks(decoded, part):
            if isinstance(chunk, InputError):
                part.skipped.add(chunk)
            else:
                self._add(part, own, chunk)
            if part.skipped and not self.skip:
                break
        return part

    @property
    def apart(self) -> bool:
        """Whether records are evaluated with those of their step alone."""
        return self.logged or self.evaluator.wants_first_pass

    def measure(self, decoded: Iterable[DecodedChunk]) -> dict[int, BatchStatistics]:
        """The first pass: the statistics of each step. What cannot be used is left out."""
        found: dict[int, BatchStatistics] = {}
        for own, chunk in self._chunks(decoded, Part()):
            if isinstance(chunk, Chunk):
                step = _told(own[0]).step
                for one in chunk.each(self.evaluator.measure):
                    if not isinstance(one, InputError):
                        found.setdefault(step, BatchStatistics()).merge(one[1])
        return found

    def _chunks(
        self, decoded: Iterable[DecodedChunk], part: Part
    ) -> Iterator[tuple[list[_Own], Chunk | InputError]]:
        """Records that are evaluated together, with the step of each: small ones of many steps."""
        runs = (run for few in decoded for run in self._stepped(few, part))
        if self.apart:
            runs = (one for run in runs for one in _of_one_step(run))
        for _, together in groupby(runs, key=lambda run: run.own[0].step if self.apart else None):
            waiting: list[_Own] = []
            for chunk in chunks(_noted(together, waiting), with_headers=True):
                count = len(chunk.records) if isinstance(chunk, Chunk) else 1
                yield waiting[:count], chunk
                del waiting[:count]

    def _stepped(self, few: DecodedChunk, part: Part) -> Iterator[_Stepped]:
        """Records with the step of each; in place of those without one stand their errors."""
        items = few.items
        found = [self._step(item, part) for item in items]
        _note_order(part, found, items)
        own = [_Own(one if isinstance(one, Told) else None, None) for one in found]
        if few.keys is None or says_more(few.keys):
            for at, item in enumerate(items):
                if own[at].told is not None and isinstance(item, Raw):
                    own[at] = own[at]._replace(said=more(item.value))
        if all(one.told is not None for one in own):
            yield _Stepped(own, few)
            return
        pairs = zip(own, found, items, strict=True)
        left = [(each, one, item) for each, one, item in pairs if one is not None]
        kept = [one if isinstance(one, InputError) else item for _, one, item in left]
        own = [each for each, _, _ in left]
        keys = None if any(one.told is None for one in own) else few.keys
        yield _Stepped(own, DecodedChunk(kept, keys))

    def _step(self, item: Raw | InputError, part: Part) -> Told | InputError | None:
        """A record's step; None for what cannot be evaluated, of which the rest is kept."""
        try:
            if isinstance(item, Raw):
                return self.step_of.of_record(item)
            if not isinstance(item, NoLogProbsError):
                return item
            source, signal = item.source or "", item.signal
            step = self.step_of.told(signal.step, source, item.line)
            part.origins.add(step, source, item.line)
            sums = part.sums(Told(step, None if signal.step is None else signal.key), source)
            sums.rows.add(signal.rewards, signal.lengths, signal.group)
            part.notices[f"only rewards, and lengths where they are told: {item.message}"] = None
        except InputError as error:
            return error
        return None

    def _add(self, part: Part, own: Sequence[_Own], chunk: Chunk) -> None:
        evaluator = self.evaluator
        if self.measured is not None:
            evaluator = replace(evaluator, measured=self.measured.get(_told(own[0]).step))

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
            self._add_to(part, own[done : done + count], some, result)
            done += count

    def _add_to(self, part: Part, own: Sequence[_Own], chunk: Chunk, result: _Evaluated) -> None:
        breakdown, rewards = result
        said = [_told(one) for one in own]
        known = None if isinstance(breakdown, MissingColumnError) else breakdown
        if known is not None:
            part.signatures.setdefault(known.objective.signature, said[0].step)
            part.references.add(chunk, self.evaluator.plan, known.objective)
            assumed = on_policy_by_default(known)
            part.moved |= not assumed
            part.notices |= {NO_OLD: None} if assumed else {}
        if isinstance(breakdown, MissingColumnError):
            part.missing.setdefault(str(breakdown), breakdown)
        cuts = [*chunk.batch.cuts(_borders([one.step for one in said]))]
        measured = Measured(chunk, known, rewards, cuts)
        for at, cut in enumerate(cuts):
            first = cut.records.start
            sums = part.sums(said[first], chunk.records[first].source)
            measured.add_to(sums, at, self.evaluator.plan.batch)
            if self.logged:  # then they are of one step
                measure_logged(sums, chunk, known)
        for at, (told, one, record) in enumerate(zip(said, own, chunk.records, strict=True)):
            if one.said is not None:  # what a record says counts where the record does
                tokens = partial(_tokens, chunk, at)
                measure_said(part.sums(told, record.source), told.step, one.said, tokens)


def _tokens(chunk: Chunk, number: int) -> list[tuple[int, list[int]]]:
    """Of each response of a record, how many tokens it has, and the indices of those that count."""
    batch, first = chunk.batch, int(chunk.batch.records.starts[number])
    found = []
    for response, width in enumerate(chunk.records[number].widths, first):
        start, length = (
            int(one[response]) for one in (batch.responses.starts, batch.responses.lengths)
        )
        kept = range(length) if batch.positions is None else batch.positions[start : start + length]
        found.append((width, [int(one) for one in kept]))
    return found


def _told(own: _Own) -> Told:
    """The step of a record that was read."""
    assert own.told is not None
    return own.told


def _borders(numbers: Sequence[int]) -> list[int]:
    """Where the step changes, with the beginning and the end."""
    changes = [at for at, (before, after) in enumerate(pairwise(numbers), 1) if before != after]
    return [0, *changes, len(numbers)]


def _of_one_step(run: _Stepped) -> Iterator[_Stepped]:
    """The same, cut where the step changes."""
    if len({one.step for one in run.own}) == 1:
        yield run
        return
    pairs = zip(run.own, run.few.items, strict=True)
    for _, some in groupby(pairs, key=lambda pair: pair[0].step):
        own, items = zip(*some, strict=True)
        yield _Stepped([*own], DecodedChunk([*items], run.few.keys))


def _noted(runs: Iterable[_Stepped], waiting: list[_Own]) -> Iterator[DecodedChunk]:
    """The records alone, what is known of them being noted in ``waiting``."""
    for own, few in runs:
        waiting += own
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
            before = told.step
