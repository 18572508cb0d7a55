"""What a format is: how records are encoded in any process, and what is written around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from grpo_cli.commands.eval.lines import Lines, encode_lines
from grpo_cli.commands.eval.run import Run
from grpo_cli.engine.evaluation import Encode
from grpo_cli.engine.rows.fields import ACCUMULATED, COLUMNS, Level


@dataclass(frozen=True)
class Printing:
    """What to print, without contradictions.

    Attributes:
        level: what one row is.
        fields: those of a row, in this order; None for the usual ones.
        limit: how many rows; None for the format's own limit, 0 for all.
        nested: whether rows stay inside their record.
        quiet: whether notes are wanted.
        by: the fields that ``--batch`` names.
    """

    level: Level
    fields: tuple[str, ...] | None
    limit: int | None
    nested: bool = False
    quiet: bool = False
    by: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a row."""
        return self.fields or (*self.by, *COLUMNS[self.level])

    def names_of_totals(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The fields of a batch's row, with those of micro-batches where the rows have them."""
        return self.fields or (*self.names, *(name for name in ACCUMULATED if name in rows[0]))

    @property
    def weighs(self) -> bool:
        """Whether rows have weights, which are of the batch that they belong to."""
        wanted = self.level == "record" and "contribution" in (self.fields or ())
        return wanted or self.level in ("response", "token")


Write = Callable[[Run, Printing, str, BinaryIO], None]
Head = Callable[[Sequence[str]], bytes]
"""The names of fields → what stands above the rows."""


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        encode: what encodes the records of a breakdown, one piece per record or for all of them.
        write: writes the pieces and what stands around them.
        streams: whether it prints as it goes, so that a progress bar would be in the way.
    """

    encode: Callable[[Printing], Encode]
    write: Write
    streams: bool = True


def lines_format(lines: Lines, write: Write) -> Format:
    """A format with one line a row."""

    def encode(printing: Printing) -> Encode:
        return partial(encode_lines, level=printing.level, fields=printing.names, lines=lines)

    return Format(encode, write)


def totals_of(run: Run, printing: Printing, variant: str) -> list[dict[str, Any]]:
    """The rows of level ``batch``: one, or one for each value of the fields of ``--batch``."""
    rows = run.batches if printing.by else [{"signature": run.signature, **run.total}]
    rows = rows[: printing.limit or None]
    names = printing.names_of_totals(rows)
    return [{name: {"variant": variant, **row}.get(name) for name in names} for row in rows]


def limited(
    run: Run, printing: Printing, count: Callable[[Any, int], tuple[Any, int]]
) -> Iterator[list[Any]]:
    """The pieces of the first rows; the rest is evaluated and not printed.

    Args:
        run: what is printed.
        printing: says how many rows.
        count: the first rows of a piece, at most so many, and how many they are.
    """
    if not printing.limit:
        yield from run
        return
    room = printing.limit
    for pieces in run:
        first = []
        for piece in pieces if room else ():
            kept, rows = count(piece, room)
            first.append(kept)
            room -= rows
            if not room:
                break
        yield first


def one_row(piece: bytes, most: int) -> tuple[bytes, int]:
    """A piece that is one row."""
    del most
    return piece, 1


def first_lines(piece: bytes, most: int) -> tuple[bytes, int]:
    """The first lines of a piece."""
    lines = piece.splitlines(keepends=True)[:most]
    return b"".join(lines), len(lines)


def write_lines(
    run: Run, printing: Printing, variant: str, stream: BinaryIO, lines: Lines, head: Head
) -> None:
    """A head where there is anything to print, then the rows, or the row of level ``batch``."""
    first = head(printing.names)
    for pieces in limited(run, printing, first_quoted if lines.quoted else first_lines):
        if pieces:
            stream.writelines([first, *pieces])
            stream.flush()
            first = b""
    if run.empty or (printing.level == "batch" and not run.complete):
        return
    if printing.level != "batch":
        stream.write(first)
        return
    rows = totals_of(run, printing, variant)
    stream.write(head([*rows[0]]))
    for row in rows:
        cells = [lines.cell(value) for value in row.values()]
        stream.write(lines.line(cells, [*row]).encode() + b"\n")


def no_head(_: Sequence[str]) -> bytes:
    """The head of a format that has none."""
    return b""


def first_quoted(piece: bytes, most: int) -> tuple[bytes, int]:
    """The first rows of a piece of csv; a quoted cell may hold the ends of lines."""
    rows, start, quoted = 0, 0, False
    for line in piece.splitlines(keepends=True):
        quoted ^= line.count(b'"') % 2 == 1
        start += len(line)
        rows += not quoted
        if rows == most:
            break
    return piece[:start], rows
