"""One function per format: the pieces of a run → a stream of bytes."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from grpo_cli.commands.eval.csv_lines import csv_header, csv_line, first_lines
from grpo_cli.commands.eval.document import Document
from grpo_cli.commands.eval.printing import Printing
from grpo_cli.commands.eval.run import Run
from grpo_cli.commands.eval.table import write_table
from grpo_cli.engine.rows.fields import TOTAL_FIELDS


def _limited(run: Run, printing: Printing) -> Iterator[list[bytes]]:
    """The pieces of the first rows; the rest is evaluated and not printed."""
    room = printing.limit or sys.maxsize
    for pieces in run:
        kept = []
        for piece in pieces if room else ():
            if printing.kind in ("csv", "only"):
                piece, rows = first_lines(piece, room)
            else:
                rows = 1
            kept.append(piece)
            room -= rows
            if not room:
                break
        yield kept


Writer = Callable[[Run, Printing, str, BinaryIO], None]


def _total(run: Run, printing: Printing) -> dict[str, Any]:
    chosen = printing.fields if printing.level == "batch" else None
    total = run.total
    return {name: total[name] for name in chosen or TOTAL_FIELDS}


def write_jsonl(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    """The records, one a line, as they are computed; at level batch the totals."""
    del variant
    for pieces in _limited(run, printing):
        stream.writelines(piece + b"\n" for piece in pieces)
        stream.flush()
    if printing.level == "batch" and run.complete and not run.empty:
        stream.write(orjson.dumps(_total(run, printing)) + b"\n")


def write_json(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    """One document: what was evaluated, the totals, and the records."""
    with Document(records=printing.level != "batch") as document:
        for pieces in _limited(run, printing):
            for piece in pieces:
                document.add(piece)
        if run.empty or (printing.level == "batch" and not run.complete):
            return
        head: Mapping[str, Any] = {"variant": variant, "signature": run.signature}
        document.write(stream, head, _total(run, printing) if run.complete else None)


def write_csv(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    """A header, then one line per row."""
    del variant
    header = csv_header(printing.level, printing.fields)
    for pieces in _limited(run, printing):
        if pieces:
            stream.writelines([header, *pieces])
            stream.flush()
            header = b""
    if not run.empty and (printing.level != "batch" or run.complete):
        stream.write(header)
        _write_total_line(run, printing, stream)


def write_only(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    """The values of one field, one a line."""
    del variant
    for pieces in _limited(run, printing):
        stream.writelines(map(_bare, pieces))
        stream.flush()
    if run.complete and not run.empty:
        _write_total_line(run, printing, stream)


def _bare(piece: bytes) -> bytes:
    """A csv column without the quotes that text with a comma has."""
    if b'"' not in piece:
        return piece
    rows = csv.reader(piece.decode().splitlines(keepends=True))
    return "".join(f"{cell}\n" for row in rows for cell in row or [""]).encode()


def _write_total_line(run: Run, printing: Printing, stream: BinaryIO) -> None:
    if printing.level == "batch":
        total = _total(run, printing)
        stream.write(csv_line(total, [*total]))


WRITERS: Mapping[str, Writer] = {
    "table": write_table,
    "json": write_json,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "only": write_only,
}
