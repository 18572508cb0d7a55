"""The ``table`` format: totals on top, then the first rows."""

from __future__ import annotations

from functools import partial
from typing import Any, BinaryIO

import orjson
from rich.console import Console

from grpo_cli.commands.eval.format import Format, Printing
from grpo_cli.commands.eval.nested import encode_nested
from grpo_cli.commands.eval.rows_view import ROWS, print_batches, print_rows, print_totals
from grpo_cli.commands.eval.run import Run
from grpo_cli.engine.evaluation import Encode
from grpo_cli.engine.rows.fields import Level
from grpo_cli.terminal.messages import say
from grpo_cli.terminal.paging import print_page
from grpo_cli.terminal.screen import Screen

_LIMIT = {"token": 200}
_USUAL_LIMIT = 50


def _encode(printing: Printing) -> Encode:
    # A table chooses its columns itself, and needs the others to say what they mean.
    return partial(encode_nested, level=printing.level, fields=None, weighs=printing.weighs)


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    """Totals, then one row per record or response, or one table per response."""
    del variant
    limit = printing.limit
    if limit is None:
        limit = _LIMIT.get(printing.level, _USUAL_LIMIT)
    records = _first(run, printing.level, limit)
    if run.empty or (printing.level == "batch" and not run.complete):
        return
    counted = []

    def draw(console: Console, screen: Screen) -> None:
        if run.complete and printing.by:
            print_batches(console, screen, printing, run.batches, run.signature, run.total)
        elif run.complete:
            print_totals(console, screen, printing.level, printing.fields, run.total, run.signature)
        if printing.level != "batch":
            size = run.gradient_size if printing.weighs and run.complete else None
            counted.append(print_rows(console, screen, printing, records, limit, size))

    print_page(stream, draw, "cut", notes=() if printing.quiet else run.notices)
    if printing.level != "batch" and not printing.quiet:
        _tell_rest(ROWS[printing.level], run.total[ROWS[printing.level]] - sum(counted))


def _tell_rest(rows: str, more: int) -> None:
    if more:
        say(f"… {more:,} more {rows} (use --limit 0 or --format jsonl)")


def _first(run: Run, level: Level, limit: int) -> list[dict[str, Any]]:
    """The records that hold the first ``limit`` rows; the others are only counted."""
    kept: list[dict[str, Any]] = []
    rows = 0
    for pieces in run:
        for piece in pieces:
            if limit and rows >= limit:
                break
            kept.append(orjson.loads(piece))
            rows += _rows(kept[-1], level)
    return kept


def _rows(record: dict[str, Any], level: Level) -> int:
    if level == "record":
        return 1
    responses = record["responses"]
    return len(responses) if level == "response" else sum(r["length"] for r in responses)


FORMAT = Format(_encode, _write, streams=False)
