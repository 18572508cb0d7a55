"""The steps and the findings in each format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import orjson

from grpo_cli.commands.eval.formats import csv as csv_format
from grpo_cli.commands.eval.formats import markdown as markdown_format
from grpo_cli.commands.trend.beside import Beside
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.options import TrendOptions
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Step
from grpo_cli.commands.trend.view import (
    known,
    print_beside,
    print_charts,
    print_findings,
    print_steps,
    rows,
)
from grpo_cli.terminal.escapes import escaped_json
from grpo_cli.terminal.screen import screen_of, written
from grpo_cli.variants.plan import Plan

_CONTEXT = ("step", "file")


def write(
    stream: BinaryIO,
    steps: Sequence[Step],
    found: Sequence[Finding],
    plan: Plan,
    columns: list[str] | None,
    options: TrendOptions,
    run: Run,
    compared: Beside | None,
) -> None:
    """Writes what was found of a run."""
    metrics = list(steps[0].metrics if steps else METRICS)
    names = [*_CONTEXT, *(columns or metrics)]
    if options.kind == "json":
        document = _document(steps, found, plan, run)
        document |= {} if compared is None else {"log": compared.told}
        stream.write(_json(document) + b"\n")
    elif options.kind == "jsonl":
        for row in rows(steps):
            stream.write(_json({name: row[name] for name in names}, indent=False) + b"\n")
    elif options.kind in ("csv", "markdown"):
        chosen = [*_CONTEXT, *(columns or known(steps))]
        _write_lines(stream, rows(steps), chosen, options.kind)
    else:
        screen = screen_of(stream)
        console = screen.console()
        if options.plot:
            print_charts(console, screen, steps, columns, found)
        else:
            print_steps(console, screen, steps, columns, options.limit)
        print_findings(console, found)
        if compared is not None:
            print_beside(console, compared)
        stream.write(written(console).encode())


def _write_lines(
    stream: BinaryIO, found: Sequence[dict[str, Any]], names: Sequence[str], kind: str
) -> None:
    if kind == "csv":
        lines, head = csv_format.LINES, ",".join(names).encode() + b"\n"
    else:
        lines, head = markdown_format.LINES, markdown_format.head(names)
    stream.write(head)
    for row in found:
        cells = [lines.cell(row[name]) for name in names]
        stream.write(lines.line(cells, names).encode() + b"\n")


def _document(
    steps: Sequence[Step], found: Sequence[Finding], plan: Plan, run: Run
) -> dict[str, Any]:
    return {
        "variant": plan.variant,
        "signatures": list(run.signatures),
        "steps": [
            row | {"worst": step.worst} for row, step in zip(rows(steps), steps, strict=True)
        ],
        "findings": found,
    }


def _json(document: Any, *, indent: bool = True) -> bytes:
    return escaped_json(orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else 0))
