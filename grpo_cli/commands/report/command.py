"""``grpo report``: the page of a run, as ``grpo trend --html`` writes it."""

from __future__ import annotations

import sys
from dataclasses import replace

from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.source import Files, ReadingOptions
from grpo_cli.commands.trend.command import answer_run
from grpo_cli.commands.trend.options import StoredOptions, TrendOptions
from grpo_cli.errors import UsageError
from grpo_cli.terminal.messages import failures


@bundled
def report(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: TrendOptions,
    stored: StoredOptions,
) -> None:
    """Write a run as one HTML page: its series, steps, groups and tokens.

    \b
    grpo report run/rollouts --html report.html
    grpo report 'steps/*.jsonl.zst' -v dapo --steps 100 -o report.html

    `grpo trend RUN --html FILE` writes this page too. It stores the groups that
    findings point at and a random sample of the others, and says which. It
    loads nothing from the network.
    """  # noqa: D301 - \b is for the help's formatter
    page = options.html or options.output or "-"
    with failures():
        if options.kind != "table":
            raise UsageError("report writes a page; grpo trend RUN --json prints the numbers")
        if page == "-" and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("use -o FILE to save the page")
    options = replace(options, html=page, output=None)
    answer_run(files, objective, reading, options, stored, "report")
