"""``grpo convert``: any input that can be read → canonical JSONL or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, BinaryIO, Literal

import typer

from grpo_cli.commands.eval.printing import Json, Quiet
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.objective import Files, paths
from grpo_cli.commands.options.source import (
    ErrorOptions,
    RecordOption,
    SourceOptions,
    tell_errors,
    tell_more_errors,
    tell_notes,
)
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.canonical import canonical, dumps
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.escapes import escaped_json
from grpo_cli.terminal.messages import failures, say

Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write here, whole or not at all; Parquet where it ends in .parquet.",
        show_default=False,
    ),
]
To = Annotated[
    Literal["jsonl", "parquet"] | None,
    typer.Option("--to", help="Default: by the name of --output, else jsonl.", show_default=False),
]

Writer = Callable[[Iterator[dict[str, Any]], BinaryIO], None]


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
        run = _Conversion(reader, as_json=json)
        kind = to or ("parquet" if (output or "").endswith(".parquet") else "jsonl")
        with destination(output) as stream:
            run.write(_WRITERS[kind], stream)
        tell_notes(reader.notices, quiet=quiet)
        code = run.finish()
    raise typer.Exit(code)


class _Conversion:
    """The canonical objects of the records that can be read; tells of those that cannot."""

    def __init__(self, reader: Reader, *, as_json: bool) -> None:
        self._reader = reader
        self._as_json = as_json
        self._told = 0
        self._written = 0
        self._last: Raw | None = None

    def write(self, writer: Writer, stream: BinaryIO) -> None:
        try:
            writer(self._objects(), stream)
        except InputError as error:
            if error.source is None and self._last is not None:
                error.source, error.line = self._last.source, self._last.line
                error.path = self._last.prefix + error.path
            raise

    def _objects(self) -> Iterator[dict[str, Any]]:
        for raw, _ in self._reader.records():
            self._last = raw
            self._tell_skipped()
            yield canonical(raw, self._written)
            self._written += 1
        self._tell_skipped()

    def _tell_skipped(self) -> None:
        self._told = tell_errors(self._reader.skipped, self._told, as_json=self._as_json)

    def finish(self) -> int:
        skipped = self._reader.skipped
        if not skipped:
            return 0
        tell_more_errors(skipped)
        say(f"skipped {skipped.count} of {skipped.count + self._written} records")
        return InputError.exit_code


def _write_jsonl(records: Iterator[dict[str, Any]], stream: BinaryIO) -> None:
    for one in records:
        stream.write(escaped_json(dumps(one)) + b"\n")


def _write_parquet(records: Iterator[dict[str, Any]], stream: BinaryIO) -> None:
    from grpo_cli.records.tables.parquet import write

    write(records, stream)


_WRITERS = {"jsonl": _write_jsonl, "parquet": _write_parquet}
