"""The options of what ``eval`` prints: which rows, which fields of them, in which format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import (
    LIMIT,
    HavingOption,
    Json,
    Output,
    Quiet,
    TableFormat,
    fields_option,
    format_of,
    format_option,
)
from grpo_cli.commands.options.place import Resume
from grpo_cli.engine.rows.fields import (
    ACCUMULATED,
    COLUMNS,
    EXTRAS,
    FIELDS,
    NAMED,
    SHARES,
    Level,
)
from grpo_cli.engine.rows.rows import Having
from grpo_cli.errors import UsageError, checked
from grpo_cli.terminal.destination import standard_output

FormatName = Literal[TableFormat, "parquet"]
ONLY = "only"
"""The format of ``--only``; no name for ``--format``."""


@dataclass(frozen=True, kw_only=True)
class Printing:
    """What is printed: the level of rows, their fields, their format, and where they go.

    ``of_batches`` checks it, and sets what follows from it:

    Attributes:
        by: the fields that ``--batch`` names.
        kind: the format's name.
        fields: the fields of a row, in this order; None for the usual ones.
        asked: which of them are ``EXTRA``.
        having: which rows are wanted; None: all.
        weighs: whether rows have weights, which are of the batch that they belong to.
        shares: whether shares are wanted before the whole batch was read.
    """

    level: Annotated[Level, option("--level", "LEVEL", f"{', '.join(get_args(Level))}.")] = "record"
    format: Annotated[FormatName | None, format_option(FormatName)] = None
    json: Json = False
    listed: Annotated[str | None, fields_option(complete.among(FIELDS["token"]))] = None
    only: Annotated[
        str | None,
        option(
            "--only",
            "A,B,…",
            "Print only these values, one row per line.",
            autocompletion=complete.among(FIELDS["token"]),
        ),
    ] = None
    nest: Annotated[
        bool, option("--nest", "", "With jsonl: one line per record, its rows as arrays.", "Output")
    ] = False
    output: Output = None
    resume: Resume = False
    tests: HavingOption = None
    limit: Annotated[int | None, LIMIT] = None
    quiet: Quiet = False
    by: tuple[str, ...] = ()
    kind: str = "table"
    fields: tuple[str, ...] | None = None
    asked: tuple[str, ...] = ()
    having: Having | None = None
    weighs: bool = False
    shares: bool = False

    def of_batches(self, by: tuple[str, ...]) -> Printing:
        """The same for batches that these fields name, checked.

        Raises:
            UsageError: for flags that contradict each other, or an unknown field.
        """
        kind = format_of(self.format, as_json=self.json)
        if self.only is not None:
            kind, others = ONLY, {"fields": self.listed, "format": self.format, "json": self.json}
            if given := [flag for flag, value in others.items() if value]:
                raise UsageError(
                    f"--only prints bare values and cannot be combined with --{given[0]}; "
                    f"to print columns: --fields {self.only}"
                )
        if kind == "parquet" and self.output in (None, "-"):
            raise UsageError("--format parquet is binary: write it with -o FILE")
        if self.nest and kind != "jsonl":
            raise UsageError("--nest needs --format jsonl; json is always nested")
        level, extra = self.level, {*EXTRAS[self.level]}
        more = ACCUMULATED if by and level == "batch" else ()
        known = (*dict.fromkeys((*by, *FIELDS[level], *more)),)
        fields = self._fields(known)
        having = complete.having(self.tests, level, known)
        asked = tuple(name for name in fields or () if name in extra)
        read = {*asked, *(extra.intersection(having.names) if having is not None else ())}
        return replace(
            self,
            by=by,
            kind=kind,
            fields=fields,
            asked=asked,
            having=having,
            weighs=level not in ("batch", "record") or bool(read),
            shares=not read.isdisjoint(SHARES),
        )

    def _fields(self, known: Sequence[str]) -> tuple[str, ...] | None:
        given = self.listed if self.only is None else self.only
        if given is None:
            return None
        where = f"{'--fields' if self.only is None else '--only'} at --level {self.level}"
        names = dict.fromkeys(name.strip() for name in given.split(","))

        def check(name: str) -> str:
            advice = f"; if records have it, --batch {name} adds it and makes each value a batch"
            return complete.known_column(where, name, self.level, known, advice)

        return tuple(dict.fromkeys(checked(check, names)))

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a row."""
        return self.fields or (*dict.fromkeys((*self.by, *COLUMNS[self.level])),)

    def names_of_totals(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The fields of a batch's row, with those of micro-batches where the rows have them."""
        more = (name for name in (*NAMED, *ACCUMULATED) if name in rows[0])
        return self.fields or (*self.names, *more)

    def wanted(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The batches' totals that are wanted, where these are the rows."""
        having = self.having if self.level == "batch" else None
        return [row for row in rows if having is None or having.holds(row)]

    def bar(self, *, streams: bool) -> bool:
        """Whether a progress bar would help: not where results stream to the same terminal."""
        streams = streams and self.level != "batch"
        to_file = self.output is not None
        stdout = standard_output()
        return not self.quiet and (
            to_file or not (streams and stdout is not None and stdout.isatty())
        )
