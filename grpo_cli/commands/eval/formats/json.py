"""The ``json`` format: one document, its totals before its records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, BinaryIO

from grpo_cli.commands.eval.formats.document import Document
from grpo_cli.commands.eval.formats.format import Format, Printing, limited, one_row
from grpo_cli.commands.eval.formats.nested import encode_nested
from grpo_cli.commands.eval.run import Run
from grpo_cli.engine.evaluation import Encode


def _encode(printing: Printing) -> Encode:
    return partial(encode_nested, level=printing.level, fields=printing.fields)


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    with Document(records=printing.level != "batch") as document:
        for pieces in limited(run, printing, one_row):
            for piece in pieces:
                document.add(piece)
        if run.empty or (printing.level == "batch" and not run.complete):
            return
        head: Mapping[str, Any] = {"variant": variant, "signature": run.signature}
        document.write(stream, head, _total(run, printing) if run.complete else None)


def _total(run: Run, printing: Printing) -> Mapping[str, Any]:
    chosen = printing.fields if printing.level == "batch" else None
    return run.total if chosen is None else {name: run.total[name] for name in chosen}


FORMAT = Format(_encode, _write, streams=False)
