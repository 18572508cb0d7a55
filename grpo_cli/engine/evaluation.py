"""A run over files: iterate it for the output, then read its totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from grpo_cli.engine.batches import BatchTotals
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import Pieces, Told
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.reader import Reader
from grpo_cli.engine.references import References, has_reference, lacks_kl, without_kl
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.signature import instead
from grpo_cli.records import DecodedChunk, Record
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan, idle_clip
from grpo_cli.variants.trainer import other_row

if TYPE_CHECKING:
    from grpo_cli.engine.cluster.parts import PartFolder

T = TypeVar("T")
Encode = Callable[[Sequence[Record], Breakdown], list[Any]]
Progress = Callable[[int, int], None]
Look = Callable[[Chunk], Iterable[str]]


@dataclass
class Outcome:
    """What became of a piece of input.

    Attributes:
        batches: what its records add up to, batch by batch.
        pieces: output in order, one piece per evaluated record or for several of them.
        skipped: the records that could not be evaluated.
        error: the one at which work stopped, when it was not to be skipped.
        notices: facts to tell once.
        of_first: those of its first record; None where it has none.
        references: which records have a reference; all or none may, where a KL is left out.
    """

    batches: BatchTotals
    pieces: Pieces = field(default_factory=Pieces)
    skipped: Skipped = field(default_factory=Skipped)
    error: InputError | None = None
    notices: Notices = field(default_factory=dict)
    of_first: Notices | None = None
    references: References = field(default_factory=References)

    def merge(self, later: Outcome) -> None:
        """Adds what became of the input that follows; of nothing that follows an error."""
        if self.error is not None:
            return
        before_mix = self.references.pieces_before_mix(later.references)
        self.references.merge(later.references, len(self.pieces))
        if self.references.error is not None:
            self.pieces += later.pieces[:before_mix]
            self.error = self.references.error
            return
        self.batches.merge(later.batches)
        self.pieces += later.pieces
        self.skipped.merge(later.skipped)
        self.error = later.error
        self.notices |= later.notices
        if self.of_first is None:
            self.of_first = later.of_first

    @property
    def records(self) -> int:
        """How many records were evaluated."""
        return self.batches.records

    @property
    def totals(self) -> Totals:
        """The totals of the batch; of several, their mean."""
        return self.batches.whole

    @property
    def told(self) -> Notices:
        """All that is told once, in its order."""
        return (self.of_first or {}) | self.notices


@dataclass(frozen=True)
class Task:
    """What to do with decoded objects: the part of an evaluation that runs in any process.

    Attributes:
        evaluator: which objective.
        encode: a breakdown's bytes, one piece per record; None when only totals are wanted.
        skip: whether to go on behind a record that cannot be evaluated.
        most_errors: how many errors of such records are kept; 0 for all.
        look: what there is to tell of the input's first record.
    """

    evaluator: Evaluator
    encode: Encode | None
    skip: bool
    most_errors: int = FEW
    look: Look | None = None

    def nothing(self) -> Outcome:
        """What becomes of no input: what outcomes are merged into."""
        evaluator = self.evaluator
        batches = BatchTotals(evaluator.plan.batch, evaluator.words)
        return Outcome(batches, skipped=Skipped(self.most_errors))

    def evaluate(self, decoded: Iterable[DecodedChunk]) -> Outcome:
        """Evaluates records in order; stops at the first bad one unless it is to be skipped."""
        outcome = self.nothing()
        look = self.look
        for part in _each(chunks(decoded, with_headers=self.encode is not None), self._breakdown):
            outcome.of_first = {} if outcome.of_first is None else outcome.of_first
            if isinstance(part, InputError):
                if not self.skip:
                    outcome.error = part
                    break
                outcome.skipped.add(part)
                look = None  # what follows is not the first record, wherever pieces are cut
                continue
            chunk, breakdown = part
            if look is not None:
                outcome.of_first |= dict.fromkeys(look(chunk))
                look = None
            plan, place = self.evaluator.plan, len(outcome.pieces)
            outcome.references.add(chunk, plan, breakdown.objective, place)
            if outcome.references.error is not None:
                outcome.error = outcome.references.error
                break
            outcome.batches.add(chunk, breakdown)
            if self.evaluator.rows and self.evaluator.plan.batch != "record":
                outcome.batches.add_sizes(chunk, breakdown)
            outcome.notices |= dict.fromkeys([*_notices(breakdown), *plan.assumed(chunk.settings)])
            if self.encode is not None:
                outcome.pieces += self.encode(chunk.records, breakdown)
        return outcome

    def measure(self, decoded: Iterable[DecodedChunk]) -> BatchStatistics:
        """The first pass: what a piece adds to it. Records that cannot be used are left out."""
        found = BatchStatistics()
        for part in _each(chunks(decoded, with_headers=False), self.evaluator.measure):
            if not isinstance(part, InputError):
                found.merge(part[1])
        return found

    def _breakdown(self, chunk: Chunk) -> Breakdown:
        return self.evaluator.evaluate(chunk)


def _each(
    parts: Iterable[Chunk | InputError], work: Callable[[Chunk], T]
) -> Iterator[tuple[Chunk, T] | InputError]:
    for part in parts:
        if isinstance(part, InputError):
            yield part
        else:
            yield from part.each(work)


class Evaluation:
    """Evaluates files in order, in flat memory.

    Iterating yields the output of chunks of records, one piece per record, as it is computed, and
    raises the ``InputError`` at which the run stopped after everything before it. The output is
    the same to the byte whatever the reader's ``jobs`` and ``block_bytes`` are.

    Args:
        reader: the files.
        plan: which objective.
        encode: a breakdown's bytes, one piece per record; None when only totals are wanted.
        progress: called with the bytes and tokens of each piece that is done.
        manifest: the folder to which workers of a cluster write the output.
        look: what there is to tell of the first record; it travels between processes.
        rows: whether ``encode`` reads weights of tokens or responses, so that the denominators of
            their batches have to be known first.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        *,
        encode: Encode | None,
        progress: Progress | None = None,
        manifest: PartFolder | None = None,
        look: Look | None = None,
        rows: bool = False,
    ) -> None:
        self._reader = reader
        reader.batch_by(plan.batch)
        evaluator = Evaluator(plan, rows=rows, skip=reader.skip)
        self._task = Task(evaluator, encode, reader.skip, reader.most_errors, look)
        self._progress = progress
        self._manifest = manifest
        self._outcome = self._task.nothing()
        self._notices: Notices = {}

    def __iter__(self) -> Iterator[list[Any]]:
        task = self._task
        if task.skip and task.evaluator.plan.leaves_kl_out():
            self._keep_input()
            found = self._reader.map(has_reference, by_columns=True)
            needed = any(one for _, one in found)  # then a record without one is skipped
            task = replace(task, evaluator=replace(task.evaluator, needs_reference=needed))
        if task.evaluator.wants_first_pass:
            self._keep_input()
            task = replace(task, evaluator=measured(task.evaluator, self._reader))
        yield from self._evaluate(task)

    def _keep_input(self) -> None:
        """Keeps what can be read only once in files, and notes it."""
        for name in self._reader.keep_input():
            kept = "standard input" if name == "<stdin>" else name
            self._notices[f"{kept} was kept in a temporary file: two passes"] = None

    def _evaluate(self, task: Task) -> Iterator[list[Any]]:
        outcome = self._outcome = task.nothing()
        # No name for it: an error keeps what has one, and with it the processes that work ahead.
        for piece, part in self._reader.map(
            task.evaluate,
            together=task.encode is None,
            by_columns=True,
            manifest=self._manifest,
        ):
            outcome.merge(part)
            rows, outcome.pieces = outcome.pieces, Pieces()
            if self._progress is not None:
                self._progress(piece.size, part.batches.tokens)
            yield rows
            if outcome.error is not None:
                raise outcome.error
        if self._manifest is not None and self._manifest.kept:
            kept = f"{self._manifest.kept} parts were there, and are in no number told here"
            self._notices[kept] = None
        elif not outcome.records and not outcome.skipped:
            raise self._reader.nothing()

    @property
    def skipped(self) -> Skipped:
        """The records that could not be evaluated."""
        return self._outcome.skipped

    @property
    def total(self) -> dict[str, object]:
        """The batch's numbers by name, in the order of ``TOTAL``; of several batches their mean."""
        return self._outcome.totals.row()

    @property
    def batches(self) -> list[dict[str, object]]:
        """The numbers of each batch behind the fields that name it; none where all is one batch."""
        return self._outcome.batches.rows()

    def gradient_size(self, row: Mapping[str, Any]) -> float:
        """Σ |gradient| over the tokens of the batch that a record's row belongs to."""
        if self._task.evaluator.plan.batch == "record":
            gradients = (one["tokens"]["gradient"] for one in row["responses"])
            return math.fsum(abs(one) for gradient in gradients for one in gradient)
        return self._outcome.batches.size(row)

    @property
    def signature(self) -> str:
        """The signature of the batch."""
        return self._outcome.totals.signature()

    @property
    def notices(self) -> list[str]:
        """What is told once."""
        reader, evaluated = self._reader, (self._task.evaluator.plan.variant,)
        other = other_row(reader.told.named, evaluated)
        more = dict.fromkeys([*self._replaced(), *self._ungrouped()])
        outcome, plan = self._outcome, self._task.evaluator.plan
        if outcome.references.error is not None:
            return []  # what was read until then depends on how the input is cut
        no_kl = without_kl([plan] if lacks_kl(outcome.totals.signed) else [])
        pooled = {} if outcome.error is not None else reader.pooled(plan.batch)
        return list(reader.notes() | self._notices | other | outcome.told | no_kl | more | pooled)

    def _ungrouped(self) -> Iterator[str]:
        """Says that groups are torn into their responses, where advantages are made of groups."""
        totals = self._outcome.totals
        said = self._reader.ungrouped(totals)
        given = any(part.key == "adv" and part.name == "given" for part in totals.signed)
        in_groups = self._task.evaluator.plan.compares_groups and not given
        if said is not None and (in_groups or totals.dead_groups == totals.groups):
            yield said

    def _replaced(self) -> Iterator[str]:
        """Says which of the variant's own values the records replace by some of another scale."""
        plan = self._task.evaluator.plan
        values = [
            instead(name, own, used)
            for name, (own, used) in plan.replaced(self._outcome.totals.signed).items()
            if _of_another_scale(own, used)
        ]
        if values:
            yield f"from the records, not {plan.variant}'s own: {', '.join(values)}"


def measured(evaluator: Evaluator, reader: Reader) -> Evaluator:
    """The evaluator that knows of whole batches what it needs to: after one pass, or two."""
    while evaluator.wants_first_pass:
        task = Task(evaluator, None, reader.skip, reader.most_errors)
        found = BatchStatistics()
        for _, part in reader.map(task.measure, together=True, by_columns=True):
            found.merge(part)
        if not found.moments and not found.counts:
            return evaluator  # there is no record, which the next pass says
        evaluator = evaluator.after(found)
        reader.told = Told()  # what is said of the files is said by the pass that evaluates them
    return evaluator


def _of_another_scale(own: Value, used: Value) -> bool:
    """Whether one is more than ten times the other, as 0.2 is in the place of GSPO's 0.0003."""
    if not isinstance(own, float) or not isinstance(used, float):
        return False
    low, high = sorted((abs(own), abs(used)))
    return high > 10 * low > 0


NO_OLD = "log_probs_old is missing: taken as on-policy, old := new, every ratio is 1"


def on_policy_by_default(breakdown: Breakdown) -> bool:
    """Whether every ratio is 1 because log_probs_old is missing; one against the engine is not."""
    batch = breakdown.batch
    missing = batch.log_probs_new is not None and batch.log_probs_old is batch.log_probs_new
    return missing and not (breakdown.ratio != 1.0).any()


def _notices(breakdown: Breakdown) -> Iterator[str]:
    """Facts of a chunk that are told once."""
    batch = breakdown.batch
    if on_policy_by_default(breakdown):
        engine = batch.log_probs_rollout is not None
        another = "; to take the engine's: --map log_probs_old=KEY, the key of log_probs_rollout"
        yield NO_OLD + (another if engine else "")
    if batch.rewards is not None and breakdown.objective.advantage.choice.given:
        yield "the records' advantages were used, not their rewards (--advantage to change it)"
    if batch.rewards is not None and np.isnan(batch.rewards).any():
        yield "reward functions that gave null for a response count nothing there, as in TRL"
    if (idle := idle_clip(breakdown.objective.name, breakdown.objective.surrogate)) is not None:
        yield idle
    if batch.responses.total and np.isinf(breakdown.ratio.max()):
        yield "a ratio exceeds the largest double and reads null in JSON; log_ratio has it"
