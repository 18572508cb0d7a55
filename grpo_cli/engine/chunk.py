"""Records that are evaluated together, and which of them is to blame where that fails."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64, Batch, Cut, borders
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError, Value
from grpo_cli.objective.inputs import MisnamedColumnError, MissingColumnError
from grpo_cli.objective.objective import Objective
from grpo_cli.records import BatchFields, Raw, Record, assemble, find_faults, key_of, layout, record
from grpo_cli.records.fields import unknown_keys
from grpo_cli.records.from_objects import pack, read_records
from grpo_cli.variants.plan import Plan

T = TypeVar("T")

_TOKENS = 16_384
"""Tokens of records that are read one by one and evaluated together."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive records of one layout, as flat arrays.

    Attributes:
        records: the records. Of those that were packed, what a report shows of them but their
            numbers, or nothing where no report is made, unless the whole records were asked for.
        batch: their columns.
        settings: the hyperparameters of the first.
        advantages_given: whether they give advantages themselves.
        packed: the decoded objects that were packed; empty where records were read one by one.
        of_batches: field → value of each record's batch; empty where ``--batch`` names no field.
        varied: hyperparameter → [M] the value of each record, where they differ.
    """

    records: Sequence[Record]
    batch: Batch
    settings: Mapping[str, Value]
    advantages_given: bool
    packed: Sequence[Raw] = ()
    of_batches: Sequence[BatchFields] = ()
    varied: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Sequence[Record]) -> Chunk:
        """Records of one layout side by side.

        Raises:
            InputError: for the first with a value that counts and is out of range.
        """
        first = records[0]
        of = [one.batch for one in records if one.batch is not None]
        given = first.advantages is not None
        return cls(records, assemble(records), first.hyperparameters, given, of_batches=of)

    @cached_property
    def keys(self) -> list[Hashable]:
        """The key of each record's batch; none where ``--batch`` names no field."""
        return [key_of(one) for one in self.of_batches]

    @property
    def batches(self) -> tuple[Sequence[Hashable], I64]:
        """The keys of the batches that its records belong to, and [M] which each belongs to."""
        if not self.keys:
            return [()], np.zeros(self.batch.records.count, dtype=np.int64)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(self.keys))}
        return [*numbers], np.array([numbers[key] for key in self.keys], dtype=np.int64)

    @property
    def cuts(self) -> Iterator[tuple[Hashable, Cut]]:
        """The key and the place of each run of records that belong to one batch."""
        if not self.keys:
            yield (), self.batch.whole
            return
        for cut in self.batch.cuts(borders(self.keys)):
            yield self.keys[cut.records.start], cut

    @property
    def has_reference(self) -> bool:
        """Whether the records have log-probs, or probabilities, under a reference."""
        batch = self.batch
        return batch.log_probs_ref is not None or "log_probs_ref" in batch.misnamed

    def objective(self, plan: Plan, *, reference_given: bool | None = None) -> Objective:
        """A plan's objective for these records.

        Args:
            reference_given: whether a reference counts as given; None: where the records have one.

        Raises:
            InputError: when a hyperparameter that has no usual value is nowhere given.
        """
        return plan.objective(
            self.settings,
            advantages_given=self.advantages_given,
            reference_given=self.has_reference if reference_given is None else reference_given,
            varied=self.varied,
        )

    def alone(self, at: int) -> Chunk:
        """One of the records alone."""
        if len(self.records) == 1:  # a file that is one record would be read again
            return self
        if not self.packed:
            return Chunk.of(self.records[at : at + 1])
        value = self.packed[at].value
        found = read_records([replace(self.packed[at], kept=value, again=None)], pack([value]))
        return Chunk.of([one for one in found if isinstance(one, Record)])

    def run(self, work: Callable[[Chunk], T]) -> T:
        """Returns the result of ``work`` on the chunk.

        Raises:
            InputError: where it fails, with the place of the first record to blame.
        """
        try:
            return work(self)
        except (InputError, HyperparameterError):
            raise next(part for part in self.each(work) if isinstance(part, InputError)) from None

    def each(self, work: Callable[[Chunk], T]) -> Iterator[tuple[Chunk, T] | InputError]:
        """Yields chunks with the results of ``work``, in order, and an error for each bad record.

        ``work`` is called again on parts of the chunk where it fails on the whole.
        """
        waiting: list[Chunk | InputError] = [self]
        while waiting:
            part = waiting.pop()
            if isinstance(part, InputError):
                yield part
                continue
            try:
                result = work(part)
            except (InputError, HyperparameterError) as error:
                waiting += [*part._around(error)][::-1]
            else:
                yield part, result

    def _around(self, error: InputError | HyperparameterError) -> Iterator[Chunk | InputError]:
        """Smaller chunks of the same records; the error in the place of the one to blame.

        What follows the one to blame is halved: many of many may be bad.
        """
        if self.packed:
            yield from carefully(self.packed)
            return
        records = self.records
        place = 0 if len(records) == 1 else getattr(error, "record", None)
        if place is not None:
            yield from _sound(records[:place])
            yield located(error, records[place])
            records = records[place + 1 :]
        middle = (len(records) + 1) // 2
        yield from _sound(records[:middle])
        yield from _sound(records[middle:])


@dataclass(frozen=True, eq=False)
class Mixed:
    """Chunks of records with different hyperparameters, which alternate in the file.

    Attributes:
        chunks: in the order of their first records.
        packed: the decoded objects of all of them, in the order of the file.
    """

    chunks: Sequence[Chunk]
    packed: Sequence[Raw]

    def each(self, work: Callable[[Chunk], T]) -> Iterator[tuple[Chunk, T] | InputError]:
        """As that of ``Chunk``; where it fails, records are read one by one, in order."""
        try:
            found = [(chunk, work(chunk)) for chunk in self.chunks]
        except (InputError, HyperparameterError):
            for part in carefully(self.packed):
                yield from (part,) if isinstance(part, InputError) else part.each(work)
        else:
            yield from found


def located(error: InputError | HyperparameterError, culprit: Record) -> InputError:
    """The error with the place of the record that is to blame."""
    if isinstance(error, InputError) and error.source is not None:
        return error
    path = error.path if isinstance(error, InputError) else error.name
    path = (culprit.prefix + path.removeprefix(culprit.prefix)).rstrip(".")
    kind, message, left = InputError, error.message, ""
    if isinstance(error, MisnamedColumnError):
        kind = MisnamedColumnError
        written = {} if culprit.origin is None else culprit.origin.spelled
        own, _, rest = written.get("log_probs_new", "log_probs_new").partition("[")
        if "." in rest:  # the record's log-probs are under several keys
            message = message.partition(" (on-policy")[0]
        else:
            message = message.replace("=log_probs_new", f"={own}")
    if isinstance(error, MissingColumnError):
        kind = MissingColumnError
        column = error.path.removeprefix(culprit.prefix)
        left = unknown_keys(column, culprit.names, culprit.unknown)
    return kind(message + left, path=path, source=culprit.source, line=culprit.line)


def carefully(raws: Iterable[Raw | InputError]) -> Iterator[Chunk | InputError]:
    """Chunks of records that are read one by one; errors in the place of those that are bad."""
    return assembled(raw if isinstance(raw, InputError) else record(raw) for raw in raws)


def assembled(items: Iterable[Record | InputError]) -> Iterator[Chunk | InputError]:
    """Chunks of checked records, those of one layout together; errors in their places."""
    group: list[Record] = []
    key, room = None, _TOKENS
    for item in items:
        own = None if isinstance(item, InputError) else layout(item)
        if room <= 0 or own != key:
            yield from _sound(group)
            group, key, room = [], own, _TOKENS
        if isinstance(item, InputError):
            yield item
        else:
            group.append(item)
            room -= sum(item.widths)
    yield from _sound(group)


def _sound(records: Sequence[Record]) -> Iterator[Chunk | InputError]:
    """Records of one layout as a chunk; as several around those whose values are out of range."""
    if not records:
        return
    try:
        yield Chunk.of(records)
    except InputError:
        begin = 0
        for place, fault in sorted(find_faults(records).items()):
            yield from _sound(records[begin:place])
            yield located(fault, records[place])
            begin = place + 1
        yield from _sound(records[begin:])
