"""The steps and the findings in each format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, BinaryIO

from rich.console import Console

from grpo_cli.commands.emit import as_json, write_rows
from grpo_cli.commands.trend.beside import Beside
from grpo_cli.commands.trend.findings import Coverage
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
    print_verdict,
    rows,
)
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.paging import lines_of, print_page
from grpo_cli.terminal.screen import Screen, screen_of, written
from grpo_cli.variants.plan import Plan

_CONTEXT = ("step", "file")
_USUAL_LIMIT, _LEAST = 40, 4
_AROUND = 11
"""The lines of the table that are no steps: its head, its sparks, and what is hidden."""


def write(
    stream: BinaryIO,
    steps: Sequence[Step],
    found: Sequence[Finding],
    plan: Plan,
    columns: list[str] | None,
    options: TrendOptions,
    run: Run,
    compared: Beside | None,
    covered: Coverage,
    notes: Collection[str],
) -> None:
    """Writes what was found of a run; ``notes`` are going to be told below it."""
    metrics = list(steps[0].metrics if steps else METRICS)
    names = [*_CONTEXT, *(columns or metrics)]
    if options.kind == "json":
        head = {"variant": plan.variant, "signatures": list(run.signatures)}
        tail = {"findings": found} | ({} if compared is None else {"log": compared.told})
        _write_document(stream, head, steps, tail)
    elif options.kind == "jsonl":
        for row in rows(steps):
            stream.write(as_json({name: row[name] for name in names}, indent=False) + b"\n")
    elif options.kind in ("csv", "markdown"):
        chosen = [*_CONTEXT, *(columns or known(steps))]
        write_rows(stream, options.kind, rows(steps), chosen)
    else:
        _print(stream, steps, found, columns, options, compared, covered, notes)


def _print(
    stream: BinaryIO,
    steps: Sequence[Step],
    found: Sequence[Finding],
    columns: list[str] | None,
    options: TrendOptions,
    compared: Beside | None,
    covered: Coverage,
    notes: Collection[str],
) -> None:
    """Prints the steps, as many as leave room on the screen for what they come to."""
    screen = screen_of(stream)
    conclusion = _conclusion(screen, found, compared, covered)
    below = lines_of(conclusion, screen)

    def draw(console: Console, screen: Screen) -> None:
        if options.plot:
            print_charts(console, screen, steps, columns, found)
        else:
            limit = _limit(options, screen, below)
            print_steps(console, screen, steps, columns, limit, found)
        console.file.write(conclusion)

    asked = options.limit is not None or options.plot
    long = screen.height is not None and below >= screen.height
    print_page(stream, draw, "page" if asked or long else "print", notes=notes)


def _conclusion(
    screen: Screen, found: Sequence[Finding], compared: Beside | None, covered: Coverage
) -> str:
    console = screen.console()
    print_findings(console, screen, found)
    print_verdict(console, screen, covered, found=bool(found))
    if compared is not None:
        print_beside(console, screen, compared)
    return written(console)


def _limit(options: TrendOptions, screen: Screen, below: int) -> int:
    if options.limit is not None:
        return options.limit
    if screen.height is None or chosen().full:
        return _USUAL_LIMIT
    return min(max(screen.height - below - _AROUND, _LEAST), _USUAL_LIMIT)


def _write_document(
    stream: BinaryIO, head: dict[str, Any], steps: Sequence[Step], tail: dict[str, Any]
) -> None:
    """Writes one document, ``steps`` between its head and its tail, step by step."""
    stream.write(as_json(head).removesuffix(b"\n}") + b',\n  "steps": [')
    between = b"\n    "
    for row, step in zip(rows(steps), steps, strict=True):
        stream.write(between + as_json(row | {"worst": dict(step.worst)}).replace(b"\n", b"\n    "))
        between = b",\n    "
    stream.write((b"\n  ]," if steps else b"],") + as_json(tail).removeprefix(b"{") + b"\n")
