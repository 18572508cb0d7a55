"""The ``json`` format: one document whose totals stand before its records.

The totals are known last, so the records wait in a temporary file that is in memory while it is
small; memory stays flat whatever the input.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson

from grpo_cli.commands.eval.format import Format, Printing, limited, one_row
from grpo_cli.commands.eval.nested import encode_nested
from grpo_cli.commands.eval.run import Run
from grpo_cli.engine.evaluation import Encode
from grpo_cli.terminal.destination import naming

_IN_MEMORY = 16 * 2**20


class Document:
    """Collects the records, then writes the whole document.

    Args:
        records: whether the document has a list of records at all.
    """

    def __init__(self, *, records: bool) -> None:
        self._records = records
        self._spool = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by __exit__
        self._empty = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._spool.close()

    def add(self, piece: bytes) -> None:
        """Appends one record, a JSON object."""
        with naming("a temporary file"):
            self._spool.write(piece if self._empty else b",\n" + piece)
        self._empty = False

    def write(self, stream: BinaryIO, head: Mapping[str, Any], totals: Mapping[str, Any]) -> None:
        """Writes ``head``, the totals and the records."""
        opening = orjson.dumps({**head, **totals}, option=orjson.OPT_SERIALIZE_NUMPY)
        stream.write(opening[:-1])
        if self._records:
            stream.write(b',"records":[\n')
            self._spool.seek(0)
            shutil.copyfileobj(self._spool, stream, 2**20)
            stream.write(b"]" if self._empty else b"\n]")
        stream.write(b"}\n")


def _encode(printing: Printing) -> Encode:
    return partial(
        encode_nested, level=printing.level, fields=printing.fields, weighs=printing.weighs
    )


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    with Document(records=printing.level != "batch") as document:
        for pieces in limited(run, printing, one_row):
            for piece in pieces:
                document.add(piece)
        if run.empty or (printing.level == "batch" and not run.complete):
            return
        head: Mapping[str, Any] = {"variant": variant, "signature": run.signature}
        document.write(stream, head, _totals(run, printing) if run.complete else {"total": None})


def _totals(run: Run, printing: Printing) -> Mapping[str, Any]:
    """The totals; with ``--batch FIELD`` their mean over the batches, and those of each."""
    chosen = printing.fields if printing.level == "batch" else None

    def picked(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return row if chosen is None else {name: row[name] for name in chosen if name in row}

    totals = {"total": picked(run.total)}
    return totals | {"batches": list(map(picked, run.batches))} if printing.by else totals


FORMAT = Format(_encode, _write, streams=False)
