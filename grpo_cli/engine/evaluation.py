"""A run over files: iterate it for the output, then read its totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from grpo_cli.engine.batches import BatchTotals
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.facts import DEAD_ALONE, GIVEN_ALONE, Skipped
from grpo_cli.engine.fold import Accumulator, first_pass, fold_pieces
from grpo_cli.engine.padding import counts_padding
from grpo_cli.engine.reader import Reader
from grpo_cli.engine.references import References, ReferenceSearch, lacks_kl, without_kl
from grpo_cli.engine.rows.rows import Having
from grpo_cli.engine.rows.source import Source
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.signature import MIXED, plain, setting
from grpo_cli.records import DecodedChunk
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan, as_flags, unusual_values

if TYPE_CHECKING:
    from grpo_cli.engine.cluster.parts import PartFolder

Encode = Callable[[Source], list[Any]]
Progress = Callable[[int, int], None]
Look = Callable[[Chunk], Iterable[str]]


@dataclass
class EvaluationSums(Accumulator[Breakdown]):
    """The totals of some records, with their output where it is wanted.

    Attributes:
        evaluator: which objective.
        encode: makes the output of records, in pieces; None: only totals are wanted.
        having: which rows of output are wanted; None: all.
        look: returns what commands print of the input's first record.
        batches: the totals, batch by batch.
        pieces: output in order, one piece per evaluated record or for several of them.
        shown: how many rows ``having`` left.
        notices: messages to print once.
        of_first: those of its first record; None where it has none.
        references: which records have a reference; all or none may, where a KL is left out.
    """

    evaluator: Evaluator
    encode: Encode | None = None
    look: Look | None = None
    having: Having | None = None
    batches: BatchTotals = field(init=False)
    pieces: list[Any] = field(default_factory=list)
    shown: int = 0
    notices: Notices = field(default_factory=dict)
    of_first: Notices | None = None
    references: References = field(default_factory=References)

    needs_records: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("evaluator", "encode", "look", "having")

    def __post_init__(self) -> None:
        self.batches = BatchTotals(self.evaluator.plan.batch, self.evaluator.words)
        self.headers = self.encode is not None
        self.in_order = self.headers or self.batches.by_field

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Adds records in order, and yields the errors of those that it leaves out."""
        for error in super().read(decoded):
            if self.of_first is None:  # nor is the next one the first, wherever pieces are cut
                self.of_first = {}
            yield error

    def evaluate(self, chunk: Chunk) -> Breakdown:
        """The chunk's breakdown."""
        return self.evaluator.evaluate(chunk)

    def add(self, chunk: Chunk, breakdown: Breakdown) -> None:
        """Adds the records of a chunk."""
        plan = self.evaluator.plan
        if self.of_first is None:
            looked = self.look(chunk) if self.look is not None else ()
            self.of_first = dict.fromkeys([*looked, *plan.unused_beta(chunk.settings)])
        self.references.add(chunk, plan, breakdown.objective, len(self.pieces))
        self.error = self.references.error
        if self.error is not None:
            return
        self.batches.add(chunk, breakdown)
        if self.evaluator.rows and plan.batch != "record":
            self.batches.sizes.add(chunk, breakdown)
        self.notices |= dict.fromkeys([*_notices(breakdown), *plan.assumed(chunk.settings)])
        if self.encode is not None:
            sizes = partial(self.evaluator.sizes, chunk, breakdown)
            wanted = None if self.having is None else self.having.mask
            source = Source(chunk.records, breakdown, sizes, wanted)
            self.shown += 0 if source.mask is None else int(np.count_nonzero(source.mask))
            self.pieces += self.encode(source)

    def merge(self, later: EvaluationSums) -> None:
        """Adds the records that follow, up to where some have a reference and others do not."""
        known, found = self.references.first, later.references.first
        before_mix = max((at for key, at in found.items() if key not in known), default=0)
        self.references.merge(later.references, len(self.pieces))
        self.error = self.references.error
        if self.error is not None:
            self.pieces += later.pieces[:before_mix]
            return
        self.batches.merge(later.batches)
        self.pieces += later.pieces
        self.shown += later.shown
        self.notices |= later.notices
        if self.of_first is None:
            self.of_first = later.of_first


@dataclass
class StatisticsSums(Accumulator[BatchStatistics]):
    """The statistics of whole batches that an evaluator needs before it evaluates.

    Attributes:
        evaluator: which objective.
        found: the statistics.
    """

    evaluator: Evaluator
    found: BatchStatistics = field(default_factory=BatchStatistics)

    in_order = False
    settings: ClassVar[tuple[str, ...]] = ("evaluator",)

    def evaluate(self, chunk: Chunk) -> BatchStatistics:
        """The chunk's part of the statistics."""
        return self.evaluator.measure(chunk)

    def add(self, chunk: Chunk, found: BatchStatistics) -> None:
        """Adds a chunk's part."""
        del chunk
        self.found.merge(found)

    def merge(self, later: StatisticsSums) -> None:
        """Adds the statistics of other records."""
        self.found.merge(later.found)


class Evaluation:
    """Evaluates files in order, in flat memory.

    Iterating yields the output of chunks of records, one piece per record, as it is computed, and
    raises the ``InputError`` at which the run stopped after everything before it. The output is
    the same to the byte whatever the reader's ``jobs`` and ``block_bytes`` are. ``sums`` has what
    was added up.

    Args:
        encode: makes the output of records, in pieces; None when only totals are wanted.
        progress: called with the bytes and tokens of each piece that is done.
        part_folder: the folder to which workers of a cluster write the output.
        look: what to print of the first record; it travels between processes.
        rows: whether ``encode`` reads weights of tokens or responses, so that the denominators of
            their batches have to be known first.
        shares: whether it reads shares, which need what their batches add up to.
        having: which rows of output are wanted; None: all.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        *,
        encode: Encode | None,
        progress: Progress | None = None,
        part_folder: PartFolder | None = None,
        look: Look | None = None,
        rows: bool = False,
        shares: bool = False,
        having: Having | None = None,
    ) -> None:
        self._reader = reader
        reader.batch_by(plan.batch)
        evaluator = Evaluator(plan, rows=rows, shares=shares, skip=reader.skip)
        self._evaluator, self._encode, self._look = evaluator, encode, look
        self._progress = progress
        self._part_folder, self._having = part_folder, having
        self.sums = EvaluationSums(evaluator)
        self._notices: Notices = {}

    def __iter__(self) -> Iterator[list[Any]]:
        evaluator, reader = self._evaluator, self._reader
        if reader.skip and evaluator.plan.leaves_kl_out():
            self._keep_input()
            needed = first_pass(reader, ReferenceSearch).found
            evaluator = replace(evaluator, needs_reference=needed)  # those without are skipped
        if evaluator.wanted:
            self._keep_input()
            evaluator = measured(evaluator, reader)
        show = self._progress
        for sums in fold_pieces(
            reader,
            partial(EvaluationSums, evaluator, self._encode, self._look, self._having),
            progress=show and (lambda size, part: show(size, part.batches.tokens)),
            part_folder=self._part_folder,
            together=self._encode is None,
        ):
            self.sums = sums
            rows, sums.pieces = sums.pieces, []
            yield rows

    def _keep_input(self) -> None:
        """Keeps what can be read only once in files, and notes it."""
        for name in self._reader.keep_input():
            kept = "standard input" if name == "<stdin>" else name
            self._notices[
                f"{kept} was stored in a temporary file, because two passes are needed"
            ] = None

    @property
    def skipped(self) -> Skipped:
        """The records that could not be evaluated."""
        return self._reader.skipped

    @property
    def total(self) -> dict[str, Any]:
        """The batch's numbers by name, in the order of ``TOTAL``; of several batches their mean."""
        return self.sums.batches.whole.row()

    @property
    def batches(self) -> list[dict[str, object]]:
        """The numbers of each batch behind the fields that name it; none where all is one batch."""
        return self.sums.batches.rows()

    @property
    def signature(self) -> str:
        """The signature of the batch."""
        return self.sums.batches.whole.signature()

    @property
    def notices(self) -> list[str]:
        """Sentences on the input and the numbers, each once."""
        reader = self._reader
        sums, plan, totals = self.sums, self._evaluator.plan, self.sums.batches.whole
        first: Notices = dict.fromkeys(filter(None, [self.ungrouped, self.other_row]))
        if sums.references.error is not None:
            return []  # what was read until then depends on how the input is cut
        no_kl = without_kl([plan] if lacks_kl(totals.signed) else [])
        noted = (sums.of_first or {}) | sums.notices
        found = first | reader.facts.sentences(plan) | self._notices | noted | no_kl
        found |= dict.fromkeys(self._replaced())
        engine = reader.facts.keys.get("log_probs_rollout")
        use = f"; to use the engine's log-probs: --map log_probs_old={engine}" if engine else ""
        given = GIVEN if plan.asked else ""
        completed = {
            NO_OLD: NO_OLD + use,
            GIVEN: SOME_GIVEN if MIXED in self._advantages else given,
        }
        found |= dict.fromkeys(filter(None, [self.pooled]))
        return [text for one in found if (text := completed.get(one, one))]

    @property
    def other_row(self) -> str | None:
        """That the records name another row than the one that was evaluated unasked."""
        return next(iter(self._reader.other_row(self._evaluator.plan)), None)

    @property
    def pooled(self) -> str | None:
        """That several steps were evaluated as one batch."""
        failed, batch = self.sums.error is not None, self._evaluator.plan.batch
        return None if failed else next(iter(self._reader.pooled(batch)), None)

    @property
    def ungrouped(self) -> str | None:
        """That each record is a group of its own, and what follows, if that changes a number."""
        totals, compares = self.sums.batches.whole, self._evaluator.plan.compares_groups
        dead = totals.dead_groups == totals.groups
        if not (compares or dead):
            return None
        effect = GIVEN_ALONE if "given" in self._advantages else DEAD_ALONE if dead else ""
        counts = totals.records, totals.groups, totals.responses
        return self._reader.ungrouped(*counts, effect)

    @property
    def _advantages(self) -> set[str]:
        """The names of the choices that the advantages are of."""
        return {part.name for part in self.sums.batches.whole.signed if part.key == "adv"}

    def _replaced(self) -> Iterator[str]:
        """Says which of the variant's own values the records replace.

        Of grpo, and of a framework's row, which reads its settings there, only those far off.
        """
        plan = self._evaluator.plan
        of_paper = "/" not in plan.variant and plan.variant != "grpo"
        values = {
            name: (own, used)
            for name, (own, used) in plan.replaced(self.sums.batches.whole.signed).items()
            if of_paper
            or (
                isinstance(own, float)
                and isinstance(used, float)
                and max(abs(own), abs(used)) > 10 * min(abs(own), abs(used)) > 0  # another scale
            )
        }
        if values:
            keys = self._reader.facts.settings
            owns: dict[tuple[str, Value], dict[str, None]] = {}
            for name, (own, used) in values.items():
                owns.setdefault((keys.get(name, name), used), {})[plain(own)] = None
            found = ", ".join(
                f"{setting(key, used)} (default: {' and '.join(own)})"
                for (key, used), own in owns.items()
            )
            kept = " ".join(as_flags(None, {}, {name: own for name, (own, _) in values.items()}))
            yield f"taken from the records: {found}; {kept} restores the defaults"


def measured(evaluator: Evaluator, reader: Reader) -> Evaluator:
    """The evaluator that knows of whole batches what it needs to: after one pass, or two."""
    while evaluator.wanted:
        found = first_pass(reader, partial(StatisticsSums, evaluator)).found
        if found.empty:
            return evaluator  # there is no record, which the next pass says
        evaluator = evaluator.after(found)
    return evaluator


SOME_GIVEN = (
    "only some records have advantages: those of the others are computed from their rewards "
    "(--advantage NAME computes all)"
)
GIVEN = "advantages come from the records, not from their rewards (--advantage NAME computes them)"
"""Printed of a variant that somebody chose, whose formula another's advantages may not be."""
NO_OLD = "log_probs_old is missing: assuming on-policy (old = new), so every ratio is 1"


def on_policy_by_default(breakdown: Breakdown) -> bool:
    """Whether every ratio is 1 because log_probs_old is missing; one against the engine is not."""
    batch = breakdown.batch
    missing = batch.log_probs_new is not None and batch.log_probs_old is batch.log_probs_new
    return missing and not (breakdown.ratio != 1.0).any()


def _notices(breakdown: Breakdown) -> Iterator[str]:
    """Sentences on the data of a chunk."""
    batch = breakdown.batch
    if on_policy_by_default(breakdown):
        yield NO_OLD
    if batch.rewards is not None and breakdown.objective.advantage.choice.given:
        yield GIVEN
    if batch.rewards is not None and np.isnan(batch.rewards).any():
        yield "reward functions that returned null for a response are ignored there, as in TRL"
    objective = breakdown.objective
    yield from unusual_values(objective.name, objective.surrogate, objective.kl)
    new = batch.log_probs_new
    if new is not None and counts_padding(batch.records, batch.responses, new):
        yield (
            "responses of equal length end in log-probs of exactly 0 that no mask leaves out: if "
            "these are padding, they count as tokens (grpo check shows where)"
        )
    if batch.responses.total and np.isinf(breakdown.ratio.max()):
        yield "a ratio exceeds the largest double and is null in JSON; use log_ratio"
