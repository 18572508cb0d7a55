"""The options of ``grpo report``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from grpo_cli.commands.options.output import Quiet, output_option
from grpo_cli.commands.trend.options import LogFile


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What of the run is kept, and where the page goes."""

    output: Annotated[str | None, output_option("Write the page here, whole or not at all.")] = None
    html: Annotated[
        bool,
        typer.Option(
            "--html",
            help="As a page for the browser, there is no other form; --html FILE is -o FILE.",
        ),
    ] = True
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="FIELD",
            help="Where a record says its step, as in trend; file: each file is one.",
            show_default=False,
        ),
    ] = None
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="Files of one step are of one run, whatever their folders."),
    ] = False
    log: LogFile = None
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            help="Steps whose groups are kept; those that findings point at always are.",
        ),
    ] = 40
    groups: Annotated[
        int,
        typer.Option(
            "--groups",
            metavar="N",
            min=0,
            help="Groups of a step whose tokens are kept, besides its worst ones.",
        ),
    ] = 2
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            metavar="N",
            min=0,
            help="Tokens that are kept, besides those that findings point at.",
        ),
    ] = 500_000
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the sample of steps and groups.")
    ] = 0
    quiet: Quiet = False
