"""The options of ``grpo trend``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.objective import ObjectiveOptions, number
from grpo_cli.commands.options.output import Json, Output, Quiet, TableFormat, format_of
from grpo_cli.commands.options.source import ReadingOptions
from grpo_cli.commands.trend.comparison import framework_of
from grpo_cli.commands.trend.logs import Log
from grpo_cli.commands.trend.metrics import METRICS, metric
from grpo_cli.commands.trend.names import NAMES
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.step import Flags
from grpo_cli.variants.plan import as_flags


def _path(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="FILE", help=f"Write {what} instead.", show_default=False)


LogFile = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="What the trainer logged, to compare: trainer_state.json, JSONL or CSV.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class TrendOptions:
    """Which steps, which columns, in which format, and what makes the answer no."""

    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="FIELD",
            help="Where a record says its step, as meta.step; file: each file is one. "
            "Default: step, global_step, … or the file's name.",
            show_default=False,
        ),
    ] = None
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="Files of one step are of one run, whatever their folders."),
    ] = False
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="A,B,…",
            help="The columns, in this order.",
            autocompletion=complete.among(METRICS),
            show_default=False,
        ),
    ] = None
    format: Annotated[
        TableFormat | None,
        typer.Option("--format", "-f", help="Default: table.", show_default=False),
    ] = None
    json: Json = False
    names: Annotated[
        Literal["grpo", "trl", "verl", "prime-rl", "nemo-rl", "slime"],
        typer.Option("--names", help="Whose metrics: under its names, computed as it does."),
    ] = "grpo"
    log: LogFile = None
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as the files grow, until Ctrl-C or --fail-on.")
    ] = False
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            parser=number,
            help="How often --follow looks. Default: 2.",
            show_default=False,
        ),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Small charts in place of the table.")] = (
        False
    )
    html: Annotated[str | None, _path("--html", "series and findings as a page")] = None
    svg: Annotated[str | None, _path("--svg", "the series as a picture")] = None
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="TEST",
            help="Exit with 1 where a step fits, as 'mismatch.k3>0.01', or on findings.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="Steps in the table; 0 for all. Default: 40, or what the screen has room for.",
            show_default=False,
        ),
    ] = None
    output: Output = None
    quiet: Quiet = False

    @property
    def kind(self) -> str:
        """The format's name."""
        return format_of(self.format, as_json=self.json)

    def columns(self) -> list[str] | None:
        """The columns that are asked for; None for those that say something.

        Raises:
            UsageError: for an unknown one.
        """
        if self.fields is None:
            return None
        names = [one.strip() for one in self.fields.split(",")]
        metrics = METRICS if self.names == "grpo" else NAMES[self.names]
        return [
            name
            if name not in METRICS and metric(name)
            else complete.known("--fields", name, (*metrics, "file"))
            for name in names
        ]

    def framework(self, log: Log | None) -> str | None:
        """The framework whose metrics are computed as well."""
        return framework_of(log) if self.names == "grpo" else self.names

    def step_source(self, places: Sequence[str]) -> StepSource:
        """How the step of a record is found."""
        return StepSource.of_flag(self.step, places)


def flags_of(objective: ObjectiveOptions, reading: ReadingOptions) -> Flags:
    """The flags of the objective and of reading."""
    variant = None if objective.variant == "grpo" else objective.variant
    words = as_flags(variant, objective.stages, objective.hyperparameters)
    return Flags(words, reading.words)
