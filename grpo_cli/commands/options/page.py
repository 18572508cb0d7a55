"""Results that are one page or one JSON document, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import orjson
import typer
from rich.console import Console

from grpo_cli.commands.options.output import Output, Quiet, TableFormat, format_of
from grpo_cli.commands.options.place import destination
from grpo_cli.errors import UsageError
from grpo_cli.terminal.numbers import escaped_json
from grpo_cli.terminal.paging import Beyond, print_page
from grpo_cli.terminal.screen import Screen

Row = Mapping[str, Any]

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """In which format the page is printed, and where it goes."""

    format: Annotated[
        TableFormat | None,
        typer.Option(
            "--format",
            "-f",
            help="Default: table. csv, jsonl and markdown print its rows.",
            show_default=False,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False
    output: Output = None
    quiet: Quiet = False

    @property
    def json(self) -> bool:
        """Whether the answer, and errors, are JSON."""
        return self.as_json or self.format == "json"

    def write(
        self,
        document: Mapping[str, Any],
        draw: Callable[[Console, Screen], None],
        *,
        rows: Iterable[Row] | None = None,
        failed: bool = False,
        beyond: Beyond = "page",
        notes: Iterable[str] = (),
    ) -> None:
        """Writes the document as JSON, or what ``draw`` makes of it; into no file if it failed.

        Args:
            document: the answer.
            draw: prints it for reading.
            rows: the same as a table, for the formats that are one.
            failed: whether there is none.
            beyond: what becomes of a page that is higher than the terminal.
            notes: what is going to be told below it.

        Raises:
            UsageError: for a format that this answer has not.
        """
        name = format_of(self.format, as_json=self.as_json)
        if failed and self.output not in (None, "-"):
            return
        with destination(self.output) as stream:
            if name == "json":
                stream.write(escaped_json(orjson.dumps(document, option=_OPTIONS)) + b"\n")
            elif name != "table":
                stream.write(_table(name, rows))
            else:
                print_page(stream, draw, beyond, notes=() if self.quiet else notes)


def _table(format: str, rows: Iterable[Row] | None) -> bytes:
    """The rows, each with the columns that any of them has."""
    from grpo_cli.commands.eval.formats import csv, jsonl, markdown  # those that are asked for

    if rows is None:
        raise UsageError(f"--format {format}: this answer is no table; it has --json")
    lines = {"csv": csv.LINES, "jsonl": jsonl.LINES, "markdown": markdown.LINES}[format]
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = "".join(
        lines.line([lines.cell(_plain(row.get(name))) for name in names], names) + "\n"
        for row in rows
    )
    if not names:
        return b""
    head = {"csv": csv.head, "markdown": markdown.head}.get(format)
    return (head(names) if head else b"") + text.encode()


def _plain(value: Any) -> Any:
    """A value without numpy's types."""
    return value.item() if isinstance(value, np.generic) else value
