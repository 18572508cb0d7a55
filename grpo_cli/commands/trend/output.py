"""The steps and the findings in each format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import BinaryIO

from rich.console import Console

from grpo_cli.commands.emit import as_json, write_rows
from grpo_cli.commands.trend.comparison import LogComparison, Trend
from grpo_cli.commands.trend.findings import Coverage
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.options import TrendOptions
from grpo_cli.commands.trend.step import Finding
from grpo_cli.commands.trend.view import (
    known,
    print_charts,
    print_findings,
    print_log_comparison,
    print_steps,
    print_verdict,
)
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.paging import lines_of, print_page
from grpo_cli.terminal.screen import Screen, screen_of, written

_CONTEXT = ("step", "file")
_USUAL_LIMIT, _LEAST = 40, 4
_AROUND = 11
"""The lines of the table that are no steps: its head, its sparks, and what is hidden."""


def write(
    stream: BinaryIO,
    answer: Trend,
    columns: list[str] | None,
    options: TrendOptions,
    covered: Coverage,
    notes: Collection[str],
) -> None:
    """Writes an answer; ``notes`` are going to be printed below it."""
    if options.kind == "json":
        stream.write(as_json(answer) + b"\n")
    elif options.kind == "table":
        _print(stream, answer, columns, options, covered, notes)
    else:
        steps = answer.steps
        every = [*steps.metrics] if steps else [*METRICS]
        names = columns or (every if options.kind == "jsonl" else known(steps))
        write_rows(stream, options.kind, steps, [*_CONTEXT, *names])


def _print(
    stream: BinaryIO,
    answer: Trend,
    columns: list[str] | None,
    options: TrendOptions,
    covered: Coverage,
    notes: Collection[str],
) -> None:
    """Prints the steps, as many as leave room on the screen for what they come to."""
    screen = screen_of(stream)
    conclusion = _conclusion(screen, answer.findings, answer.log, covered)
    below = lines_of(conclusion, screen)

    def draw(console: Console, screen: Screen) -> None:
        if options.plot:
            print_charts(console, screen, answer.steps, columns, answer.findings)
        else:
            limit = _limit(options, screen, below)
            print_steps(console, screen, answer.steps, columns, limit, answer.findings)
        console.file.write(conclusion)

    asked = options.limit is not None or options.plot
    long = screen.height is not None and below >= screen.height
    print_page(stream, draw, "page" if asked or long else "print", notes=notes)


def _conclusion(
    screen: Screen, found: Sequence[Finding], compared: LogComparison | None, covered: Coverage
) -> str:
    console = screen.console()
    print_findings(console, screen, found)
    print_verdict(console, screen, covered, found=bool(found))
    if compared is not None:
        print_log_comparison(console, screen, compared)
    return written(console)


def _limit(options: TrendOptions, screen: Screen, below: int) -> int:
    if options.limit is not None:
        return options.limit
    if screen.height is None or chosen().full:
        return _USUAL_LIMIT
    return min(max(screen.height - below - _AROUND, _LEAST), _USUAL_LIMIT)
