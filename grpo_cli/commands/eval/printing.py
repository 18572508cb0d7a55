"""The options of what ``eval`` prints: which rows, which fields of them, in which format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

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
    FIELDS,
    NAMED,
    SHARES,
    Level,
    extras,
)
from grpo_cli.engine.rows.rows import Having, read_having
from grpo_cli.errors import UsageError
from grpo_cli.terminal.destination import standard_output

FormatName = Literal[TableFormat, "parquet"]
ONLY = "only"
"""The format of ``--only``; no name for ``--format``."""


class Printing(NamedTuple):
    """The rows to print, without contradictions.

    Attributes:
        level: what one row is.
        fields: the fields of a row, in this order; None for the usual ones.
        limit: how many rows; None for the format's own limit, 0 for all.
        nested: whether rows stay inside their record.
        quiet: whether notes are left out.
        by: the fields that ``--batch`` names.
        having: which rows are wanted; None: all.
    """

    level: Level
    fields: tuple[str, ...] | None
    limit: int | None
    nested: bool = False
    quiet: bool = False
    by: tuple[str, ...] = ()
    having: Having | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a row."""
        return self.fields or (*self.by, *COLUMNS[self.level])

    def names_of_totals(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The fields of a batch's row, with those of micro-batches where the rows have them."""
        more = (name for name in (*NAMED, *ACCUMULATED) if name in rows[0])
        return self.fields or (*self.names, *more)

    @property
    def weighs(self) -> bool:
        """Whether rows have weights, which are of the batch that they belong to."""
        return self.level not in ("batch", "record") or bool(self.asked or self._tested)

    @property
    def asked(self) -> tuple[str, ...]:
        """Which ``EXTRA`` fields the rows have."""
        return tuple(name for name in self.fields or () if name in extras(self.level))

    @property
    def _tested(self) -> set[str]:
        names = () if self.having is None else self.having.names
        return {*names} & {*extras(self.level)}

    @property
    def shares(self) -> bool:
        """Whether shares are wanted before the whole batch was read."""
        return not {*SHARES}.isdisjoint((*self.asked, *self._tested))

    def wanted(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The batches' totals that are wanted, where these are the rows."""
        having = self.having if self.level == "batch" else None
        return [row for row in rows if having is None or having.holds(row)]


@dataclass(frozen=True, kw_only=True)
class PrintingOptions:
    """The level of rows, their fields, their format, and where they go."""

    level: Annotated[Level, option("--level", "LEVEL", f"{', '.join(get_args(Level))}.")] = "record"
    format: Annotated[FormatName | None, format_option(FormatName)] = None
    json: Json = False
    fields: Annotated[str | None, fields_option(complete.fields)] = None
    only: Annotated[
        str | None,
        option(
            "--only",
            "A,B,…",
            "Print only these values, one row per line.",
            autocompletion=complete.fields,
        ),
    ] = None
    nest: Annotated[
        bool,
        option("--nest", "", "With jsonl: one line per record, its rows as arrays.", "Output"),
    ] = False
    output: Output = None
    resume: Resume = False
    having: HavingOption = None
    limit: Annotated[int | None, LIMIT] = None
    quiet: Quiet = False

    @property
    def wants_json(self) -> bool:
        """Whether errors are to be JSON as well."""
        return self.json or self.format == "json"

    @property
    def kind(self) -> str:
        """The format's name."""
        if self.only is not None:
            return ONLY
        return format_of(self.format, as_json=self.json)

    def printing(self, by: tuple[str, ...] = ()) -> Printing:
        """The rows to print, checked.

        Args:
            by: the fields that ``--batch`` names.

        Raises:
            UsageError: for flags that contradict each other, or an unknown field.
        """
        self._check()
        given = self.fields if self.only is None else self.only
        flag = "--fields" if self.only is None else "--only"
        names = None if given is None else self._names(flag, given, by)
        having = read_having(self.having, self.level, self._known(by))
        return Printing(self.level, names, self.limit, self.nest, self.quiet, by, having)

    def bar(self, *, streams: bool) -> bool:
        """Whether a progress bar would help: not where results stream to the same terminal."""
        streams = streams and self.level != "batch"
        to_file = self.output is not None
        stdout = standard_output()
        return not self.quiet and (
            to_file or not (streams and stdout is not None and stdout.isatty())
        )

    def _check(self) -> None:
        format_of(self.format, as_json=self.json)
        if self.only is not None:
            for flag in ("fields", "format", "json"):
                if getattr(self, flag):
                    raise UsageError(f"--only prints bare values; it cannot go with --{flag}")
        if self.kind == "parquet" and self.output in (None, "-"):
            raise UsageError("--format parquet is binary: write it with -o FILE")
        if self.nest and self.kind != "jsonl":
            raise UsageError("--nest is for --format jsonl; json is nested as it is")

    def _names(self, flag: str, given: str, by: tuple[str, ...]) -> tuple[str, ...]:
        where, known = f"{flag} at --level {self.level}", self._known(by)
        names = (complete.known(where, name.strip(), known) for name in given.split(","))
        return tuple(dict.fromkeys(names))

    def _known(self, by: tuple[str, ...]) -> tuple[str, ...]:
        """The fields that a row may have."""
        added = ACCUMULATED if by and self.level == "batch" else ()
        return (*by, *FIELDS[self.level], *added)
