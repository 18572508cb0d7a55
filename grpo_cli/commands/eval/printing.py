"""The options that say what is printed, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import typer

from grpo_cli.commands.eval.csv_lines import encode_csv
from grpo_cli.commands.eval.json_lines import encode_json
from grpo_cli.commands.options import complete
from grpo_cli.engine.rows.fields import FIELDS, Level
from grpo_cli.errors import UsageError

Format = Literal["table", "json", "jsonl", "csv"]
Json = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes on standard error.")]


@dataclass(frozen=True, kw_only=True)
class PrintingOptions:
    """What one row is, which fields it has, in which format, and where it goes."""

    level: Annotated[Level, typer.Option("--level", help="What one row is.")] = "record"
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Default: table.", show_default=False)
    ] = None
    json: Json = False
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="A,B,…",
            help="The fields of a row, in this order.",
            autocompletion=complete.fields,
            show_default=False,
        ),
    ] = None
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="NAME",
            help="Print this field alone, bare, one a line.",
            autocompletion=complete.fields,
            show_default=False,
        ),
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write here, whole or not at all.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="Print the first N rows; 0 for all. In tables 50 by default, or 200 tokens.",
            show_default=False,
        ),
    ] = None
    quiet: Quiet = False

    @property
    def wants_json(self) -> bool:
        """Whether errors are to be JSON as well."""
        return self.json or self.format == "json"

    def printing(self) -> Printing:
        """What to print, checked.

        Raises:
            UsageError: for flags that contradict each other, or an unknown field.
        """
        self._check()
        if self.only is not None:
            names: tuple[str, ...] | None = (self._field("--only", self.only),)
        elif self.fields is not None:
            given = [name.strip() for name in self.fields.split(",")]
            names = tuple(dict.fromkeys(self._field("--fields", name) for name in given))
        else:
            names = None
        kind = "only" if self.only else "json" if self.json else self.format or "table"
        return Printing(self.level, kind, names, self.limit, self.quiet, self.output is not None)

    def _check(self) -> None:
        if self.json and self.format not in (None, "json"):
            raise UsageError(f"--json contradicts --format {self.format}")
        if self.only is not None:
            for flag, given in (
                ("fields", self.fields),
                ("format", self.format),
                ("json", self.json),
            ):
                if given:
                    raise UsageError(f"--only prints bare values; it cannot go with --{flag}")

    def _field(self, flag: str, name: str) -> str:
        return complete.known(f"{flag} at --level {self.level}", name, FIELDS[self.level])


@dataclass(frozen=True)
class Printing:
    """What to print, without contradictions."""

    level: Level
    kind: str
    fields: tuple[str, ...] | None
    limit: int | None
    quiet: bool
    to_file: bool

    @property
    def bar(self) -> bool:
        """Whether a progress bar would help: not where results stream to the same terminal."""
        streams = self.kind in ("jsonl", "csv", "only") and self.level != "batch"
        return not self.quiet and (self.to_file or not (streams and sys.stdout.isatty()))

    @property
    def encode(self) -> Callable[..., list[bytes]] | None:
        """Records and their breakdown → bytes, one piece per record; None for totals alone."""
        if self.level == "batch":
            return None
        if self.kind in ("csv", "only"):
            return partial(encode_csv, level=self.level, fields=self.fields)
        # A table chooses its columns itself, and needs the others to say what they mean.
        fields = None if self.kind == "table" else self.fields
        return partial(encode_json, level=self.level, fields=fields)
