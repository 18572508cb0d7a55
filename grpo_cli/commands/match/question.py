"""A logged number, the records that it was logged of, and passes over these."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from grpo_cli.batch import Batch
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator, usable
from grpo_cli.engine.fold import Accumulator, fold
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.references import References
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.hyperparameters import KNOWN
from grpo_cli.records import DecodedChunk
from grpo_cli.records.packed import LARGEST

A = TypeVar("A", bound="Pass")

_PARTS = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class LoggedNumber:
    """A logged number.

    Attributes:
        name: "loss", "objective", or another total of ``grpo eval``.
        value: the number.
        half: by how much the number before rounding may differ: half a unit of the last digit.
    """

    name: str
    value: float
    half: float

    @classmethod
    def parse(cls, name: str, text: str, rtol: float | None = None) -> LoggedNumber:
        """Reads a number; its digits are the tolerance unless ``rtol`` is given."""
        value = float(text)
        if abs(value) > LARGEST:
            raise UsageError(f"--{name}: expected at most {LARGEST:g} in size, got {text}")
        return cls(name, value, half_unit(text) if rtol is None else rtol * abs(value))

    @property
    def rtol(self) -> float:
        """The tolerance relative to the number; infinite for 0."""
        return self.half / abs(self.value) if self.value else float("inf")

    @property
    def sign(self) -> float:
        """What J is multiplied by to be compared with the number: −1 for a loss."""
        return -1.0 if self.name == "loss" else 1.0


def half_unit(text: str) -> float:
    """Half a unit of the last digit: 0.0256 → 0.00005, 1.20e-3 → 0.000005."""
    found = _PARTS.fullmatch(text)
    assert found is not None  # the caller's number was parsed
    exponent = int(found[3] or 0) - len(found[2])
    return 0.5 * 10.0**exponent


_UNIFORM = KNOWN - {"num_items_in_batch", "batch_num_tokens"}
"""All hyperparameters but the counts that differ from micro-batch to micro-batch."""


class Pass(Accumulator[None]):
    """Adds up the chunks of a pass over the data, in ``add``.

    Attributes:
        base: the plan that is searched around; a record that it cannot use is bad.
        known: what an earlier search has of the chunk that is added next; None where nothing is.
        together: bytes of text in a chunk.
    """

    base: Evaluator | None = None
    known: dict[Hashable, Any] | None = None
    together = 1 << 22
    settings: ClassVar[tuple[str, ...]] = ("base", "together")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together."""
        return chunks(
            decoded, make_records=None, uniform=_UNIFORM, together=self.together, in_order=False
        )

    def evaluate(self, chunk: Chunk) -> None:
        """Checks that the base plan can use the records.

        Raises:
            InputError: where it cannot.
        """
        if self.base is not None:
            self.base.check(chunk)


def _with_base(make: Callable[[], A], base: Evaluator) -> A:
    made = make()
    made.base = base
    return made


_KEPT = 1 << 20
"""Tokens, and responses, that are kept in memory: 30 MB, where a file is read some ten times."""
_RESPONSES = 1 << 14
"""Responses whose sums are kept for a later search."""
_CHUNKS = 64
"""Chunks that are kept in memory, each of other columns or settings."""
_START = 8192
"""Tokens that are evaluated in the time that a chunk takes to start."""


class Loaded(Pass):
    """The chunks of the input, without what only a report shows, and how many tokens they have.

    Attributes:
        kept: the chunks; empty where ``full`` says that there are too many, or too many tokens.
        tokens, count: of all chunks, kept or not.
    """

    def __init__(self) -> None:
        self.kept: list[Chunk] = []
        self.tokens = self.count = 0
        self.full = False

    def add(self, chunk: Chunk, found: None) -> None:
        """Keeps a chunk."""
        del found
        self._add([replace(chunk, records=(), packed=())], _size(chunk.batch), 1)

    def merge(self, later: Loaded) -> None:
        """Keeps the chunks of other records."""
        self.full |= later.full
        self._add(later.kept, later.tokens, later.count)

    def _add(self, kept: Sequence[Chunk], tokens: int, count: int) -> None:
        self.tokens, self.count = self.tokens + tokens, self.count + count
        self.full |= self.tokens > _KEPT
        self.kept += kept
        self.full |= len(self.kept) > _CHUNKS
        if self.full:
            self.kept = []


def _size(batch: Batch) -> int:
    return batch.responses.total + batch.responses.count


@dataclass(frozen=True)
class Stream:
    """The files of a command, which are read once for each pass.

    Attributes:
        reader: reads them.
        base: as in ``Pass``.
        work: how long a pass takes, in tokens.
    """

    reader: Reader
    base: Evaluator
    work: float = 0.0

    def fold(self, make: Callable[[], A]) -> A:
        """Reads the files, in as many processes as the reader has; ``make`` travels there."""
        return fold(self.reader, partial(_with_base, make, self.base))

    def loaded(self) -> Data:
        """The records in memory, if there is room for them."""
        found = self.fold(Loaded)
        if found.kept:
            return InMemory(found.kept)
        return replace(self, work=found.tokens + float(_START) * found.count)

    def first(self) -> Chunk:
        """The first chunk.

        Raises:
            InputError: where no record can be read; at a bad record, unless these are skipped.
        """
        for part in usable(self.reader.chunks(), self.base):
            if isinstance(part, Chunk):
                return part
            self.reader.bad(part)
        raise InputError("no record can be read")


@dataclass(frozen=True)
class InMemory:
    """Records in memory."""

    chunks: Sequence[Chunk]

    @cached_property
    def work(self) -> float:
        """How long a pass takes, in tokens."""
        return sum(_START + _size(one.batch) for one in self.chunks)

    @cached_property
    def _known(self) -> Sequence[dict[Hashable, Any] | None]:
        are_kept = sum(one.batch.responses.count for one in self.chunks) <= _RESPONSES
        return [{} if are_kept else None for _ in self.chunks]

    def fold(self, make: Callable[[], A]) -> A:
        """Adds up all chunks."""
        result = make()
        for chunk, result.known in zip(self.chunks, self._known, strict=True):
            result.add(chunk, None)
        return result


Data = Stream | InMemory
"""Records that can be read several times."""


@dataclass(frozen=True)
class Question:
    """A number, and the records that it was logged of.

    Attributes:
        target: the loss or the objective.
        data: the records; ``first`` is their first chunk.
        others: other numbers of the same records: kl, clip_fraction, gradient_norm.
    """

    target: LoggedNumber
    data: Data
    first: Chunk
    others: Sequence[LoggedNumber] = ()


# ---- totals, as grpo eval gives them -------------------------------------------------------------


@dataclass
class Exact(Totals):
    """Totals, and which records have a reference."""

    references: References = field(default_factory=References)

    def merge(self, other: Totals) -> None:
        """Adds the totals of other records.

        Raises:
            InputError: where only some of the records have a reference that the plan needs.
        """
        super().merge(other)
        if isinstance(other, Exact):
            self.references.merge(other.references)
            self.references.check()


def exactly(evaluators: Sequence[Evaluator], data: Data) -> list[Exact | None]:
    """The totals that ``grpo eval`` gives, to the bit; None where it gives an error."""
    return data.fold(partial(ExactTotals, evaluators)).found if evaluators else []


class ExactTotals(Pass):
    """The totals of plans.

    Attributes:
        found: the totals of each plan; None where it cannot be evaluated.
    """

    settings = (*Pass.settings, "_evaluators")

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = evaluators
        self.found: list[Exact | None] = [Exact(one.plan.batch) for one in evaluators]

    def add(self, chunk: Chunk, found: None) -> None:
        """Adds a chunk's records to the totals of each plan."""
        del found
        for at, (evaluator, totals) in enumerate(zip(self._evaluators, self.found, strict=True)):
            if totals is None:
                continue
            try:
                totals.references.add(chunk, evaluator.plan, evaluator.objective(chunk))
                totals.references.check()
                with np.errstate(all="ignore"):
                    totals.add(evaluator.evaluate(chunk))
            except GrpoError:
                self.found[at] = None

    def merge(self, later: ExactTotals) -> None:
        """Adds the totals of other records."""
        for at, (totals, part) in enumerate(zip(self.found, later.found, strict=True)):
            self.found[at] = None
            if totals is not None and part is not None:
                with suppress(InputError):
                    totals.merge(part)
                    self.found[at] = totals
