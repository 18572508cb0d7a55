"""Records that can be read → canonical objects, as lines or columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from grpo_cli.commands.convert.work import Converted, Together, Unnamed, blaming
from grpo_cli.commands.options.source import tell_errors, tell_skipped
from grpo_cli.engine import Reader
from grpo_cli.engine.fold import fold_pieces
from grpo_cli.engine.pieces import Pieces
from grpo_cli.errors import InputError
from grpo_cli.records.tables.canonical import canonical

if TYPE_CHECKING:
    from grpo_cli.engine.cluster.parts import PartFolder
    from grpo_cli.records.tables.parquet import Table


def write_lines(pieces: Iterable[bytes | Unnamed], stream: BinaryIO, place: int = 0) -> None:
    """Writes lines, the first of them in some place of the file."""
    for at, piece in enumerate(pieces, place):
        if isinstance(piece, bytes):
            stream.write(piece)
        elif piece.number == at:
            stream.write(piece.line)
        else:
            stream.writelines((piece.opening, piece.line[piece.cut :]))


def write_table(pieces: Iterable[Any], stream: BinaryIO) -> None:
    """Writes records as a Parquet file."""
    from grpo_cli.records.tables.parquet import Table

    with Table(stream) as table:
        _add(table, pieces, 0)


def _add(table: Table, pieces: Iterable[Together], place: int) -> int:
    """Appends records, the first of them in some place of the file; returns the next place."""
    for raws, packed in pieces:
        objects = []
        for at, raw in enumerate(raws, place):
            with blaming(raw):
                objects.append(canonical(raw, at))
        place += len(objects)
        if packed is not None and table.add_packed(objects, packed):
            continue
        for raw, one in zip(raws, objects, strict=True):
            with blaming(raw):
                table.add(one)
    return place


class Conversion:
    """The canonical objects of the records that can be read; tells of those that cannot.

    Args:
        reader: the files.
        as_table: whether they become columns; lines otherwise.
        as_json: whether errors are JSON.
    """

    def __init__(self, reader: Reader, *, as_table: bool, as_json: bool) -> None:
        self._reader = reader
        self._as_table = as_table
        self._as_json = as_json
        self._told = 0
        self._whole = Converted(as_table)

    def write(self, stream: BinaryIO) -> None:
        """Writes them all, as JSONL or as Parquet."""
        if not self._as_table:
            for pieces in self._pieces():
                write_lines(pieces, stream, self._whole.records - len(pieces))
            return
        from grpo_cli.records.tables.parquet import Table

        with Table(stream) as table:
            place = 0
            for pieces in self._pieces():
                place = _add(table, pieces, place)

    def write_parts(self, listed: PartFolder) -> None:
        """Has them written to parts by the workers of a cluster."""
        complete = False
        try:
            for _ in self._pieces(listed):
                pass
            complete = True
        finally:
            listed.close(complete=complete)

    def _pieces(self, listed: PartFolder | None = None) -> Iterator[list[Any]]:
        make = partial(Converted, self._as_table)
        for whole in fold_pieces(self._reader, make, part_folder=listed):
            self._whole = whole
            pieces, whole.pieces = whole.pieces, Pieces()
            self._told = tell_errors(self._reader.skipped, self._told, as_json=self._as_json)
            yield pieces

    def finish(self) -> int:
        """Says how many were left out; the exit code."""
        skipped = self._reader.skipped
        if not skipped:
            return 0
        tell_skipped(skipped, skipped.count + self._whole.records)
        return InputError.exit_code
