"""What is done with the records of a piece, in any process: lines of them, or their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from grpo_cli.engine.packing import alike
from grpo_cli.engine.pieces import Pieces
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Packed, Raw, assemble, record
from grpo_cli.records.tables.canonical import canonical, dumps, has_id, named
from grpo_cli.terminal.numbers import escaped_json

Together = tuple[Sequence[Raw], Packed | None]
"""Records that are alike, beside their columns; one alone beside none."""


class Unnamed(NamedTuple):
    """A line whose record has no id, and is given one where it is not written in its own place.

    Attributes:
        number: the 0-based place in which it needs none.
        line: what it is there.
        opening: what stands elsewhere for its first bytes.
        cut: how many these are.
    """

    number: int
    line: bytes
    opening: bytes
    cut: int


@dataclass
class Converted:
    """What a piece of input comes to.

    Attributes:
        pieces: its lines, or its records beside their columns, in order.
        records: how many.
        skipped: the records that cannot be read.
        error: the one at which work stopped, when it was not to be skipped.
    """

    pieces: Pieces = field(default_factory=Pieces)
    records: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    error: InputError | None = None

    def merge(self, later: Converted) -> None:
        """Adds what the input that follows comes to; nothing of it follows an error."""
        if self.error is None:
            self.pieces += later.pieces
            self.records += later.records
            self.skipped.merge(later.skipped)
            self.error = later.error


@dataclass(frozen=True)
class Convert:
    """What is done with the records of a piece, in any process.

    Attributes:
        as_table: whether they become columns; lines otherwise.
        skip: whether to go on behind a record that cannot be read.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    as_table: bool
    skip: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Converted:
        """Converts records in order; stops at the first bad one unless it is to be skipped."""
        made = Converted(skipped=Skipped(self.most_errors))
        for found in _objects(decoded):
            if isinstance(found, InputError):
                if not self.skip:
                    made.error = found
                    break
                made.skipped.add(found)
                continue
            try:
                made.pieces += [found] if self.as_table else map(_line, found[0])
            except InputError as error:  # what JSON cannot hold is never left out
                made.error = error
                made.records = len(made.pieces)
                break
            made.records += len(found[0])
        return made


def _objects(
    decoded: Iterable[DecodedChunk],
) -> Iterator[Together | InputError]:
    """Objects that are records: many alike beside their columns, others alone; errors."""
    for few in decoded:
        for items, packed in alike(few):
            if packed is not None:
                yield items, packed  # type: ignore[misc]  # none of them is an error
                continue
            for raw in items:
                error = raw if isinstance(raw, InputError) else _fault(raw)
                yield ([raw], None) if error is None else error  # type: ignore[list-item]


def _fault(raw: Raw) -> InputError | None:
    """What is wrong with a record, as its evaluation would say; None for a good one."""
    found = record(raw)
    if isinstance(found, InputError):
        return found
    try:
        with blaming(raw):
            assemble([found])
    except InputError as error:
        return error
    return None


@contextmanager
def blaming(raw: Raw) -> Iterator[None]:
    """Puts the place of a record into an error that does not know it."""
    try:
        yield
    except InputError as error:
        if error.source is None:
            error.source, error.line = raw.source, raw.line
            error.path = raw.prefix + error.path
        raise


def _line(raw: Raw) -> bytes | Unnamed:
    with blaming(raw):
        value = canonical(raw, raw.number)
        line = escaped_json(dumps(value)) + b"\n"
        if has_id(value):
            return line
        opening = _opening(value, line, raw.number)
        if opening is not None:
            return Unnamed(raw.number, line, opening, 1)
        other = escaped_json(dumps(named(value, raw.number))) + b"\n"
        return Unnamed(raw.number, line, other, len(line))


def _opening(value: dict[str, Any], line: bytes, number: int) -> bytes | None:
    """What begins the line with an id, spaced as it is; None where more than that differs."""
    key = b"{" + orjson.dumps(next(iter(value), "")) + b":"
    if "id" in value or not line.startswith(key):
        return None
    return b'{"id": %d, ' % number if line[len(key) :][:1] == b" " else b'{"id":%d,' % number
