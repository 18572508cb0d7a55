"""What a command gives to a fold: an accumulator, and what that makes of pieces of the input.

It says what one makes of a chunk of records, how that is added up, and how accumulators of records
that follow each other merge. Here records that cannot be used are skipped, or end the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.facts import InputFacts, Skipped
from grpo_cli.engine.packing import chunks
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Piece, Reading, headers

if TYPE_CHECKING:
    from grpo_cli.engine.evaluator import Evaluator
    from grpo_cli.variants.plan import Plan

T = TypeVar("T")
A = TypeVar("A", bound="Accumulator[Any]")


class Accumulator(ABC, Generic[T]):
    """Adds up records in order; accumulators of records that follow each other merge.

    Most define ``evaluate``, ``add`` and ``merge``. Those that need records as they were decoded
    define ``read`` and ``merge``.

    Attributes:
        error: the one at which work stopped. ``add`` and ``merge`` set it where the whole input
            cannot be used, though records may be skipped.
        headers: whether chunks carry what is shown of each record.
        in_order: whether records have to come in their order; if not, those of equal settings are
            evaluated together even where they alternate with others (``Mixed``).
        bundles: whether small pieces, as of small files, are read together.
        needs_records: whether an input without any record is an error.
        settings: the names of attributes that say what to do; these do not travel back with the
            sums from another process.
    """

    error: InputError | None = None
    headers: bool = False
    in_order: bool = True
    bundles: ClassVar[bool] = False
    needs_records: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that records are evaluated for; records of a chunk agree in their ``uniform``.

        That of its ``evaluator``. Without one, records of a chunk agree in all hyperparameters.
        """
        evaluator: Evaluator | None = getattr(self, "evaluator", None)
        return () if evaluator is None else (evaluator.plan,)

    @property
    def complete(self) -> bool:
        """Whether a first pass need not read the rest of the input."""
        return False

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Adds records in order, and yields the errors of those that it leaves out."""
        for chunk in self.chunks(decoded):
            if isinstance(chunk, InputError):
                yield chunk
                continue
            for part in chunk.each(self.evaluate):
                if isinstance(part, InputError):
                    yield part
                else:
                    self.add(*part)
                if self.error is not None:
                    return

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Any]:
        """Records that are evaluated together; errors in the places of those that are bad."""
        read = frozenset[str]().union(*(plan.settings for plan in self.plans))
        uniform = frozenset[str]().union(*(plan.uniform for plan in self.plans))
        return chunks(
            decoded,
            make_records=headers if self.headers else None,
            settings=read if self.plans else None,
            uniform=uniform if self.plans else None,
            in_order=self.in_order,
        )

    def evaluate(self, chunk: Chunk) -> T:
        """Returns what ``add`` needs of a chunk, and changes nothing.

        It is called again on parts of a chunk where it fails on the whole.

        Raises:
            InputError: where a record cannot be used.
            HyperparameterError: where a value cannot be used with a record.
        """
        raise NotImplementedError

    def add(self, chunk: Chunk, found: T) -> None:
        """Adds a chunk and what ``evaluate`` made of it."""
        raise NotImplementedError

    @abstractmethod
    def merge(self, later: Any) -> None:
        """Adds what was added of records that follow."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self.settings}


@dataclass
class Folded(Generic[A]):
    """The sums of some input, and what there is to say of it.

    Attributes:
        sums: the accumulator.
        skipped: the records that were left out.
        facts: what commands say once of the input.
    """

    sums: A
    skipped: Skipped
    facts: InputFacts

    def merge(self, later: Folded[A]) -> None:
        """Adds the input that follows; no records are added after an error."""
        self.facts.merge(later.facts)
        if self.sums.error is not None:
            return
        self.sums.merge(later.sums)
        if self.sums.error is None:
            self.skipped.merge(later.skipped)
            self.sums.error = later.sums.error


@dataclass(frozen=True)
class FoldPiece(Generic[A]):
    """Adds up the records of pieces that follow each other, in any process.

    Attributes:
        make: makes an accumulator without records.
        reading: how the pieces become records.
        skip: whether to go on after a record that cannot be used.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    make: Callable[[], A]
    reading: Reading
    skip: bool
    most_errors: int

    def __call__(self, pieces: Iterable[Piece]) -> Folded[A]:
        """The sums of the pieces, up to the first bad record unless it is to be skipped."""
        facts, reading, sums = InputFacts(), self.reading, self.make()
        skipped = Skipped(self.most_errors)
        found = (reading.decoded(piece, facts.notices) for piece in pieces)
        for error in sums.read(facts.collect(chain.from_iterable(found), reading.fields)):
            if not self.skip:
                sums.error = error
                break
            skipped.add(error)
        if sums.error is not None:
            facts.stop(sums.error.line, sums.error.path)
        return Folded(sums, skipped, facts)
