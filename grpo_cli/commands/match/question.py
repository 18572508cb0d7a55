"""A logged number, and the records that it was logged of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeVar

from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator, without_misnamed
from grpo_cli.engine.fold import Accumulator, fold
from grpo_cli.engine.packing import chunks
from grpo_cli.errors import InputError, UsageError
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


class Pass(Accumulator[None]):
    """Adds up the chunks of a pass over the data, in ``add``.

    Attributes:
        base: the plan that is searched around; a record whose misnamed column it needs is bad.
        together: bytes of text in a chunk.
    """

    base: Evaluator | None = None
    together = 1 << 22
    settings: ClassVar[tuple[str, ...]] = ("base", "together")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together."""
        return chunks(decoded, with_headers=False, together=self.together)

    def evaluate(self, chunk: Chunk) -> None:
        """Checks the names of the columns.

        Raises:
            MisnamedColumnError: where the base plan needs a misnamed column.
        """
        if self.base is not None and chunk.batch.misnamed:
            self.base.refuse_misnamed(chunk)


def _with_base(make: Callable[[], A], base: Evaluator | None) -> A:
    made = make()
    made.base = base
    return made


@dataclass(frozen=True)
class Stream:
    """The files of a command.

    Attributes:
        reader: reads them.
        base: as in ``Pass``.
    """

    reader: Reader
    base: Evaluator | None = None

    def fold(self, make: Callable[[], A]) -> A:
        """Reads the files, in as many processes as the reader has; ``make`` travels there."""
        return fold(self.reader, partial(_with_base, make, self.base))

    def loaded(self) -> InMemory:
        """The numbers of the records."""
        return InMemory([replace(chunk, records=(), packed=()) for chunk in self.chunks()])

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of all files.

        Raises:
            InputError: at the first bad record, unless bad records are skipped.
        """
        for part in without_misnamed(self.reader, self.base):
            if isinstance(part, Chunk):
                yield part
            else:
                self.reader.bad(part)


@dataclass(frozen=True)
class InMemory:
    """Records in memory."""

    chunks: Sequence[Chunk]

    def fold(self, make: Callable[[], A]) -> A:
        """Adds up all chunks."""
        result = make()
        for chunk in self.chunks:
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
