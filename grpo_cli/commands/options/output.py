"""The options of output: its format, where it goes, and whether notes are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_cli.commands.emit import Row, as_json, as_row, write_rows
from grpo_cli.commands.options.place import destination
from grpo_cli.errors import UsageError

if TYPE_CHECKING:  # rich is imported where it prints
    from rich.console import Console

    from grpo_cli.commands.answer import Answer
    from grpo_cli.terminal.paging import Beyond
    from grpo_cli.terminal.screen import Screen

TableFormat = Literal["table", "json", "jsonl", "csv", "markdown"]
Json = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes on standard error.")]


def output_option(text: str) -> Any:
    """``-o``, with the help that a command gives it."""
    return typer.Option("--output", "-o", metavar="FILE", help=text, show_default=False)


Output = Annotated[str | None, output_option("Write to FILE, atomically.")]


def format_of(given: str | None, *, as_json: bool) -> str:
    """The format's name, from ``--format`` and ``--json``; ``table`` without them.

    Raises:
        UsageError: where they contradict each other.
    """
    if as_json and given not in (None, "json"):
        raise UsageError(f"--json contradicts --format {given}")
    return "json" if as_json else given or "table"


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The format of an answer that is complete when it is written, and where it goes."""

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
        answer: Any,
        draw: Callable[[Console, Screen], None],
        *,
        rows: Iterable[Row | Answer] | None = None,
        failed: bool = False,
        beyond: Beyond = "page",
        notes: Iterable[str] = (),
    ) -> None:
        """Writes an answer that is complete.

        Args:
            answer: what JSON contains.
            draw: prints the table.
            rows: what the other formats contain; None if the answer has no rows.
            failed: whether there is no answer, which is written to no file.
            beyond: what to do with a table that is higher than the terminal.
            notes: what is going to be printed below the table.

        Raises:
            UsageError: for a format of rows, if there are none; if the file cannot be written.
        """
        kind = format_of(self.format, as_json=self.as_json)
        if failed and self.output not in (None, "-"):
            return
        with destination(self.output) as stream:
            if kind == "json":
                stream.write(as_json(answer) + b"\n")
            elif kind == "table":
                from grpo_cli.terminal.paging import print_page

                print_page(stream, draw, beyond, notes=() if self.quiet else notes)
            elif rows is None:
                raise UsageError(f"--format {kind}: this answer is no table; it has --json")
            else:
                listed = list(map(as_row, rows))
                names = list(dict.fromkeys(name for row in listed for name in row))
                if names:
                    write_rows(stream, kind, listed, names)
