"""One fold over the records of the input, wherever it runs, and the accumulator that adds them up.

An accumulator says what a command makes of a chunk of records, how that is added up, and how those
of records that follow each other merge. The engine reads pieces in this process, in several, or on
a cluster, finds the record that is to blame for an error, skips it or stops there, and says so
where nothing was selected.
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
    from grpo_cli.engine.cluster.parts import PartFolder
    from grpo_cli.engine.evaluator import Evaluator
    from grpo_cli.engine.reader import Reader
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


def fold(reader: Reader, make: Callable[[], A]) -> A:
    """Adds up all records of the input; their errors are in ``reader.skipped``.

    Args:
        reader: the files.
        make: makes an accumulator without records; it travels between processes.

    Raises:
        InputError: at the first record that cannot be used, unless such records are skipped; and
            where a choice of records leaves none.
    """
    whole = make()
    for whole in fold_pieces(reader, make, together=True):  # noqa: B007
        pass
    return whole


def fold_pieces(
    reader: Reader,
    make: Callable[[], A],
    *,
    progress: Callable[[int, A], None] | None = None,
    part_folder: PartFolder | None = None,
    together: bool = False,
) -> Iterator[A]:
    """Yields the sums of all records so far, after each piece of the input.

    Output that the sums hold may be taken from them each time. The errors of records that were
    left out so far are in ``reader.skipped``.

    Args:
        reader: the files.
        make: makes an accumulator without records; it travels between processes.
        progress: called with the bytes and the sums of each piece that is done.
        part_folder: the folder to which workers of a cluster write the output.
        together: whether a cluster may merge the sums of pieces that follow each other.

    Raises:
        InputError: as ``fold``, after the sums of all records before.
    """
    whole = Folded(make(), Skipped(reader.most_errors), reader.facts)
    reader.skipped = whole.skipped
    reader.facts.nulls.clear()
    read = False
    # No name for it: an error keeps what has one, and with it the processes that work ahead.
    work = FoldPiece(make, reader.reading, reader.skip, reader.most_errors)
    for size, part in reader.run(work, together=together, part_folder=part_folder):
        read |= part.facts.named is not None
        whole.merge(part)
        if progress is not None:
            progress(size, part.sums)
        yield whole.sums
        if whole.sums.error is not None:
            raise whole.sums.error
    if part_folder is not None and part_folder.kept:
        kept = f"{part_folder.kept} parts already existed; their records are not in any total"
        reader.notices[kept] = None
    elif not read and (reader.reading.selects or whole.sums.needs_records):
        raise reader.nothing()


def first_pass(reader: Reader, make: Callable[[], A]) -> A:
    """Adds up the records of the input that can be used; another fold reports the errors."""
    reader.keep_input()
    whole = make()
    work = FoldPiece(make, reader.reading, skip=True, most_errors=1)
    for _, part in reader.run(work, together=True):
        whole.merge(part.sums)
        if whole.complete:
            break
    return whole
