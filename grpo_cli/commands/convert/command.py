"""``grpo convert``: any input that can be read → canonical JSONL or Parquet."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from grpo_cli.commands.convert.conversion import Conversion
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.objective import Files, paths
from grpo_cli.commands.options.output import Json, Quiet, output_option
from grpo_cli.commands.options.source import (
    ErrorOptions,
    RecordOption,
    SourceOptions,
    tell_notes,
)
from grpo_cli.engine import Reader
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.messages import failures

Output = Annotated[
    str | None,
    output_option("Write here, whole or not at all; Parquet where it ends in .parquet."),
]
To = Annotated[
    Literal["jsonl", "parquet"] | None,
    typer.Option("--to", help="Default: by the name of --output, else jsonl.", show_default=False),
]


@bundled
def convert(
    *,
    files: Files = None,
    source: SourceOptions,
    chosen: RecordOption,
    to: To = None,
    output: Output = None,
    errors: ErrorOptions,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert any input to canonical JSONL, or Parquet.

    \b
    grpo convert train_data_step7.jsonl --group-size 16 -o step7.jsonl
    grpo convert rollouts.jsonl -o rollouts.parquet

    The result evaluates to the same numbers, bit for bit; only source and line
    are its own. Records are checked as they are read. --json is for errors.
    Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=json):
        reading, skip = source.reading(chosen.record), errors.on_error == "skip"
        reader = Reader(paths(files), reading, skip=skip, most_errors=errors.max_errors)
        run = Conversion(reader, as_json=json)
        kind = to or ("parquet" if (output or "").endswith(".parquet") else "jsonl")
        with destination(output) as stream:
            run.write(stream, as_table=kind == "parquet")
        tell_notes(reader.notices, quiet=quiet)
        code = run.finish()
    raise typer.Exit(code)
