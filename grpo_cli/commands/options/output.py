"""The options of output: its format, where it goes, and whether notes are printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from grpo_cli.commands.answer import as_row
from grpo_cli.commands.emit import Row, as_json, write_rows
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.place import destination
from grpo_cli.errors import UsageError, checked
from grpo_cli.terminal.display import chosen

if TYPE_CHECKING:  # rich is imported where it prints
    from rich.console import Console

    from grpo_cli.commands.answer import Answer
    from grpo_cli.terminal.paging import Beyond
    from grpo_cli.terminal.screen import Screen

TableFormat = Literal["table", "json", "jsonl", "csv", "markdown"]
Json = Annotated[bool, option("--json", "", "Short for --format json.", "Output")]
Quiet = Annotated[bool, option("--quiet -q", "", "Print no notes.", "Output")]
Output = Annotated[str | None, option("--output -o", "FILE", "Write to FILE, atomically.")]
LIMIT = option(
    "--limit --top -n", "N", "Rows at most (or findings per kind); 0: all.", "Output", min=0
)
HavingOption = Annotated[
    list[str] | None,
    option(
        "--having",
        "TEST",
        "Print only rows that match, e.g. 'clip!=none'.",
    ),
]
Plot = Annotated[bool, option("--plot", "", "Draw charts instead of the table.", "Output")]
Html = Annotated[str | None, option("--html", "FILE", "Write an HTML page to FILE.")]
Svg = Annotated[str | None, option("--svg", "FILE", "Write an SVG picture to FILE.", "Output")]


def format_option(names: Any) -> Any:
    """``--format``, with these names."""
    *first, last = (name for one in get_args(names) for name in (get_args(one) or [one]))
    return option("--format -f", "FORMAT", f"{', '.join(first)} or {last}.")


def fields_option(completion: Callable[[str], list[str]]) -> Any:
    """``--fields``, with a completion of the columns that there are."""
    return option(
        "--fields", "A,B,…", "Columns to print, in this order.", autocompletion=completion
    )


def named_fields(given: str | None, known: Iterable[str]) -> list[str] | None:
    """The columns that ``--fields`` names; None where it is not given, for the usual ones.

    Raises:
        UsageError: for a name that is not known.
    """
    if given is None:
        return None
    known = [*known]
    return checked(lambda name: complete.known("--fields", name.strip(), known), given.split(","))


def format_of(given: str | None, *, as_json: bool) -> str:
    """The format's name, from ``--format`` and ``--json``; ``table`` without them.

    Raises:
        UsageError: where they contradict each other.
    """
    if as_json and given not in (None, "json"):
        raise UsageError(f"--json contradicts --format {given}")
    return "json" if as_json else given or "table"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PageOptions:
    """The format of an answer that is complete when it is written, and where it goes."""

    format: Annotated[TableFormat | None, format_option(TableFormat)] = None
    as_json: Json = False
    output: Output = None
    quiet: Quiet = False

    @property
    def json(self) -> bool:
        """Whether the answer, and errors, are JSON."""
        return self.as_json or self.format == "json"

    @property
    def whole(self) -> bool:
        """Whether everything in the answer is written, not what a table has room for."""
        return self.json or self.format not in (None, "table") or chosen().full

    def above(self, notes: Iterable[str]) -> list[str]:
        """Of notes without which a number may be misread those that go above it, in a table."""
        return [] if self.quiet or self.json or self.format not in (None, "table") else [*notes]

    def write(
        self,
        answer: Any,
        draw: Callable[[Console, Screen], object],
        *,
        rows: Iterable[Row | Answer] | None = None,
        failed: bool = False,
        beyond: Beyond = "page",
        above: Collection[str] = (),
        notes: Iterable[str] = (),
    ) -> None:
        """Writes an answer that is complete.

        Args:
            answer: what JSON contains.
            draw: prints the table.
            rows: what the other formats contain; None if the answer has no rows.
            failed: whether there is no answer, which is written to no file.
            beyond: what to do with a table that is higher than the terminal.
            above: the notes of ``above``.
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

                below = () if self.quiet else notes
                print_page(stream, draw, beyond, above=above, notes=below)
            elif rows is None:
                raise UsageError(f"--format {kind}: this answer is not a table; use --json")
            else:
                listed = list(map(as_row, rows))
                names = list(dict.fromkeys(name for row in listed for name in row))
                if names:
                    write_rows(stream, kind, listed, names)
