"""Judges the records of the input, in any process: which of them evaluate to what they expect."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np

from grpo_cli.bundle import Seal, fault, seal_of
from grpo_cli.commands.verify.answer import Difference, MetricDifference, Verdict
from grpo_cli.commands.verify.batches import Losses
from grpo_cli.commands.verify.compare import (
    FLOAT32_LOSS,
    OF_SUMS,
    Column,
    Tolerance,
    column_of,
    deciding,
    differences,
    tolerances,
)
from grpo_cli.commands.verify.expected import (
    Expectation,
    Flags,
    Wanted,
    logged_results,
    read_expectations,
)
from grpo_cli.commands.verify.replay import Part
from grpo_cli.engine.chunk import Chunk, assembled
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import Accumulator
from grpo_cli.engine.packing import chunks, packed_runs
from grpo_cli.engine.references import References
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.records import DecodedChunk, Raw, Record, headers
from grpo_cli.records.fields import read_fields
from grpo_cli.records.from_objects import read_records, whole_records
from grpo_cli.records.record import blaming, in_chunks, one_by_one
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import (
    Reading,
    choose,
    completed,
    frameworks_of,
    named_row,
    settings_of,
)

Plans = dict[tuple[str, bool], Plan]
"""(framework, whether advantages are given) → its plan."""
_frameworks_of = cache(frameworks_of)


class Kind(NamedTuple):
    """What the plan of a record depends on.

    Attributes:
        words: what the record says of its framework, as text.
        advantages_given: whether it gives advantages.
        framework: what it says of its framework; None where a flag names the variant.
    """

    words: str
    advantages_given: bool
    framework: Any


class Judging(Accumulator[Any]):
    """Judges records in order.

    Args:
        variant: the variant for all records; "" takes the one of each record's framework.
        stages, hyperparameters: what the flags change in it.
        given: when two numbers agree; None: as a bundle says, or as usual.

    Attributes:
        items: what became of the records; None of one that expects nothing.
        references: which of them have a reference.
        frameworks: those whose field names records use that name no framework.
        is_named: whether a flag or a record names the variant, or a flag a stage of it.
        logged: the keys of logged losses, with which records without ``expected`` are compared.
        acting: names of ``UNTESTED``, and whether that acts in some records.
        losses: the losses that records expect, by step.
        parts: the records of bundles.
    """

    settings: ClassVar[tuple[str, ...]] = ("variant", "stages", "hyperparameters", "given")

    def __init__(
        self,
        variant: str,
        stages: Mapping[str, str],
        hyperparameters: Mapping[str, object],
        given: Tolerance | None = None,
    ) -> None:
        self.variant = variant
        self.stages = stages
        self.hyperparameters = hyperparameters
        self.given = given
        self.items: list[Judged | None] = []
        self.references = References()
        self.frameworks: dict[str, None] = {}
        self.is_named = bool(variant or stages)
        self.logged: dict[str, None] = {}
        self.acting: set[tuple[str, bool]] = set()
        self.losses = Losses()
        self.parts: list[Part] = []

    def merge(self, later: Judging) -> None:
        """Adds the records that follow; refuses those with a reference among some without."""
        self.items += later.items
        self.frameworks |= later.frameworks
        self.is_named |= later.is_named
        self.logged |= later.logged
        self.acting |= later.acting
        self.losses.merge(later.losses)
        self.parts += later.parts
        self.references.merge(later.references)
        self.error = self.references.error

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Judges records in order, and yields the errors of those that cannot be judged."""
        plans: Plans = {}
        seen = (self.seen(raw) if isinstance(raw, Raw) else raw for raw in one_by_one(decoded))
        for kind, group in groupby(seen, self._kind):
            yield from self._kept(self._of_kind(kind, group, plans))

    def read_batches(self, batches: Iterable[tuple[Raw, Record]]) -> Iterator[InputError]:
        """Judges records that each are a batch; yields the errors of those that cannot be judged.

        Args:
            batches: each with an object that says what it is evaluated as.
        """
        plans: Plans = {}
        for raw, read in batches:
            yield from self._kept(self._one(raw, read, plans))
        self.error = self.references.error

    def _kept(self, items: Iterable[Any]) -> Iterator[InputError]:
        """Keeps what became of records, and yields the errors."""
        for item in items:
            if isinstance(item, InputError):
                yield item
            else:
                self.items.append(item)

    def seen(self, raw: Raw) -> Raw:
        """Notes the loss that a record expects: without ``expected`` the logged one, if any."""
        value = raw.value
        if expects_nothing(value):
            keys = logged_results(value)
            self.logged |= dict.fromkeys(keys.values())
            if expected := {name: value[key] for name, key in keys.items()}:
                value = {**value, "expected": expected}
                raw = replace(raw, kept=value, again=None, columns=None)
        self.losses.add(value)
        return raw

    def _kind(self, raw: Raw | InputError) -> Kind | None:
        """What the plan of a record depends on; None where the record is judged alone.

        Those of bundles are, and those that expect nothing.
        """
        value = None if isinstance(raw, InputError) else raw.value
        if not isinstance(value, dict) or value.get("expected") is None or seal_of(value):
            return None
        with suppress(InputError):  # which is raised again where the record is read
            return self._kind_of(value, given="advantages" in read_fields(value).names)
        return None

    def _kind_of(self, value: Mapping[str, Any], *, given: bool) -> Kind:
        framework = None if self.variant else settings_of(value)
        if isinstance(framework, str) and (row := named_row(value)):
            framework = {"name": row}
        return Kind(repr(framework), given, framework)

    def _of_kind(self, kind: Kind | None, group: Iterable[Any], plans: Plans) -> Iterator[Any]:
        """Yields what became of records of one kind, which are evaluated together."""
        plan = None
        if kind is not None:
            with suppress(InputError):  # which is raised again for each record
                plan = self._plan(kind, plans)
        if kind is None or plan is None:
            yield from chain.from_iterable(self._alone(raw, plans) for raw in group)
            return
        together = chunks(
            in_chunks(self._noted(raw, kind) for raw in group),
            make_records=whole_records,
            settings=plan.settings,
            uniform=plan.uniform,
        )
        yield from self._judged(plan, together)

    def _noted(self, raw: Raw, kind: Kind) -> Raw:
        """Notes whose names a record's fields have, where it names no framework."""
        self.is_named |= kind.framework is not None
        if not self.variant and kind.framework is None:
            used = _frameworks_of(tuple(raw.value))
            self.frameworks |= dict.fromkeys(used) if len(used) == 1 else {}
        return raw

    def _alone(self, raw: Raw | InputError, plans: Plans) -> Iterator[Judged | InputError | None]:
        """Yields what became of a record; None of one that expects nothing."""
        [(items, packed)] = packed_runs(DecodedChunk([raw]))
        is_silent = isinstance(raw, Raw) and expects_nothing(raw.value)
        [read] = read_records(items, packed, headers if is_silent else whole_records)
        if isinstance(read, InputError):
            yield read
        else:
            assert isinstance(raw, Raw)
            yield from self._one(raw, read, plans)

    def _one(self, raw: Raw, read: Record, plans: Plans) -> Iterator[Judged | InputError | None]:
        kind = self._kind_of(raw.value, given="advantages" in read.names)
        try:
            with blaming(raw):
                seal = self._seal(raw, read, kind, plans)
                wanted = [] if read.expected is None else read_expectations(read)[0]
                plan = self._plan(kind, plans)
        except InputError as error:
            yield error
            return
        if read.expected is None or (seal is not None and not wanted):
            yield None
            return
        self._noted(raw, kind)
        yield from self._judged(plan, assembled([read]), seal)

    def tolerance(self, seal: Seal | None = None) -> Tolerance:
        """When two numbers of a record agree: by the flags, its bundle, or as usual."""
        sealed = seal.get("tolerances") if seal is not None and self.given is None else None
        if not isinstance(sealed, dict):
            return self.given or Tolerance()
        known = [sealed.get(name) for name in ("rtol", "atol", "metrics_rtol")]
        return tolerances(*(one if isinstance(one, int | float) else None for one in known))

    def _seal(self, raw: Raw, read: Record, kind: Kind, plans: Plans) -> Seal | None:
        """What a record says of its bundle, whose part it is then; None where it is of none.

        Raises:
            InputError: where it was changed since the bundle was written.
        """
        seal = seal_of(raw.value)
        if seal is not None:
            if (why := fault(raw.plain(), seal)) is not None:
                raise InputError(why, path="bundle")
            rewarded = self._plan(kind._replace(advantages_given=False), plans)
            self.parts.append(Part.of(raw, read, seal, rewarded))
        return seal

    def _judged(
        self, plan: Plan, parts: Iterable[Any], seal: Seal | None = None
    ) -> Iterator[Judged | InputError]:
        """Yields what became of chunks of records with one plan, which are batches of their own."""
        for found in self._each(plan, parts, seal):
            if isinstance(found, InputError):
                yield found
                continue
            chunk, judged = found
            with suppress(InputError):
                self.references.add(chunk, plan, chunk.objective(plan))
            yield from judged

    def _each(
        self, plan: Plan, parts: Iterable[Chunk | InputError], seal: Seal | None
    ) -> Iterator[tuple[Chunk, list[Judged | InputError]] | InputError]:
        within = self.tolerance(seal)

        def judge_chunk(chunk: Chunk) -> list[Judged | InputError]:
            questions = []
            for at, read in enumerate(chunk.records):
                try:
                    questions.append(Question(read, plan, read_expectations(read), within))
                except InputError as error:
                    error.record = at
                    raise
            kinds = [question.kind for question in questions]
            if kinds.count(kinds[0]) == len(kinds):
                breakdown = Evaluator(plan).evaluate(chunk)
                self.acting |= acting(questions, breakdown)
                return judge(questions, breakdown)
            runs = groupby(questions, lambda one: one.kind)
            each = (assembled(one.record for one in run) for _, run in runs)
            found = self._each(plan, chain.from_iterable(each), seal)
            return [
                item for one in found for item in ([one] if isinstance(one, InputError) else one[1])
            ]

        for one in parts:
            yield from [one] if isinstance(one, InputError) else one.each(judge_chunk)

    def _plan(self, kind: Kind, plans: Plans) -> Plan:
        """The plan of records."""
        key = kind[:2]
        if key not in plans:
            settings = kind.framework
            plans[key] = completed(
                choose(settings) if isinstance(settings, dict) else Reading(self.variant or "grpo"),
                advantages_given=kind.advantages_given,
                stages=self.stages,
                hyperparameters=self.hyperparameters,
            )
        return plans[key]


def expects_nothing(value: Any) -> bool:
    """Whether an object has no ``expected``, and is of no bundle."""
    return isinstance(value, dict) and value.get("expected") is None and seal_of(value) is None


UNTESTED = {
    "advantage": "the advantages (all are 0)",
    "ratio": "the ratio and its clip (every ratio is 1)",
    "clip": "the clip (no token is clipped)",
    "kl": "the KL (it is 0)",
    "loss": "the denominators (every loss is 0)",
}
"""Parts of an objective, and the words for those that do not act: agreement says little."""


def acting(questions: Sequence[Question], breakdown: Breakdown) -> set[tuple[str, bool]]:
    """Names of ``UNTESTED`` that an objective has, and whether each acts in these records."""
    objective, found = breakdown.objective, {("advantage", bool(breakdown.advantage.any()))}
    if objective.surrogate.choice.window is not None:
        moved = bool((breakdown.ratio != 1.0).any())
        found |= (
            {("ratio", True), ("clip", bool(breakdown.clip.any()))} if moved else {("ratio", False)}
        )
    if objective.beta and breakdown.kl is not None:
        found.add(("kl", bool(breakdown.kl.any())))
    others = any(each.stage not in OF_SUMS for one in questions for each in one.wanted[0])
    losses = np.abs(breakdown.record_objective) > FLOAT32_LOSS * breakdown.record_scale
    return found | {("loss", others or bool(losses.any()))}


# ---- records of one kind -------------------------------------------------------------------------


class Question(NamedTuple):
    """A record and what it expects.

    Attributes:
        record: the record.
        plan: what it is evaluated as.
        wanted: what it expects.
        within: when two numbers agree.
    """

    record: Record
    plan: Plan
    wanted: Wanted
    within: Tolerance

    @property
    def kind(self) -> Hashable:
        """What records of a chunk must share to be compared together."""
        return *(each.kind for each in self.wanted[0]), self.record.mask is None


class Judged(NamedTuple):
    """A question and its answer.

    Attributes:
        verdict: what became of the record; where it differs, without a cause as yet.
        plan: what it was evaluated as.
        undefined: whether it expects NaN of a mean over nothing (0/0), where grpo has 0.
        record: the record, where it differs.
        within: when two of its numbers agree.
        wanted: what the record expects, where it differs.
    """

    verdict: Verdict
    plan: Plan
    undefined: bool
    record: Record | None
    within: Tolerance
    wanted: Sequence[Expectation]


class _Compared(NamedTuple):
    """The numbers that some records expect under one key, compared.

    Attributes:
        column: their values.
        absent: [M] the records that have no such quantity.
        undefined: [M] the others that expect NaN of a mean over nothing.
        differences: record → where it differs.
    """

    column: Column
    absent: Sequence[bool]
    undefined: Sequence[bool]
    differences: Mapping[int, Difference]


def judge(questions: Sequence[Question], breakdown: Breakdown) -> list[Judged | InputError]:
    """Compares records of one kind with what they expect, in the order of the stages.

    Args:
        questions: the records.
        breakdown: what they evaluate to, each a batch of its own.

    Returns:
        [M] the verdicts; an error for a record of which nothing can be compared.
    """
    records = [question.record for question in questions]
    keys: dict[str, _Compared | None] = {}
    for each in zip(*(question.wanted[0] for question in questions), strict=True):
        column = column_of(records, each, breakdown)
        keys[each[0].key] = None
        if column is not None:
            absent = column.absent
            undefined = (_are_undefined(column, breakdown) & ~absent).tolist()
            differing = dict(differences(column, breakdown, questions[0].within))
            keys[each[0].key] = _Compared(column, absent.tolist(), undefined, differing)
    signatures = breakdown.objective.signatures(len(questions))
    pairs = zip(questions, signatures, strict=True)
    return [_judged(at, question, keys, line) for at, (question, line) in enumerate(pairs)]


def _are_undefined(column: Column, breakdown: Breakdown) -> Flags:
    """[M] whether a NaN is expected of a mean over nothing, which is 0 here.

    verl's means divide 0 by 0 where no token counts, in the batch or after rejection.
    """
    stage, level = column.expectation.stage, column.expectation.level
    none = np.zeros(len(column.counts), dtype=np.bool_)
    if level != "record" or not np.isnan(column.values).any():
        return none
    named = {"policy": [POLICY], "kl": [KL]}.get(stage, [])
    for term in [term for term in breakdown.terms if term.name in named] or breakdown.active:
        if term.weights.counts is not None:
            none |= breakdown.count(term.weights) == 0
    undefined: Flags = none & np.isnan(column.values) & column.given
    return undefined


def _judged(
    at: int, question: Question, keys: Mapping[str, _Compared | None], signature: str
) -> Judged | InputError:
    record, plan, (wanted, ignored), within = question
    known = {key: each for key, each in keys.items() if each and not each.absent[at]}
    ignored = [*ignored, *(key for key in keys if key not in known)]
    compared = {key: each for key, each in known.items() if not each.undefined[at]}
    if not known:
        why = f"{', '.join(ignored)} cannot be" if ignored else "nothing was"
        return InputError(
            f'{why} compared: put the result of your own loss there, as {{"loss": …, '
            '"loss_gradient": [[…]]}',
            path=f"{record.prefix}expected",
            source=record.source,
            line=record.line,
        )
    columns = [each.column for each in compared.values()]
    decide = {column.key for column in deciding(columns)}
    differing = [each.differences[at] for each in compared.values() if at in each.differences]
    decisive = [difference for difference in differing if difference.key in decide]
    verdict = Verdict(
        id=record.name,
        source=record.source,
        line=record.line,
        step=record.step,
        agrees=not decisive,
        variant=plan.variant,
        signature=signature,
        compared=tuple(compared),
        ignored=tuple(ignored),
        first=decisive[0] if decisive else None,
        also=tuple(difference.key for difference in decisive[1:]),
        metrics=tuple(
            MetricDifference(difference.key, difference.expected, difference.got)
            for difference in differing
            if difference.key not in decide
        ),
        rounded={column.key: column.precision[at] for column in columns if column.precision[at]},
    )
    undefined = len(compared) < len(known)
    differs, wanted = (None, []) if verdict.agrees else (record, wanted)
    return Judged(verdict, plan, undefined, differs, within, wanted)
