"""The options of input: the files, their format, which records are read, where the work is done."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from grpo_cli import hyperparameters
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import argument, option
from grpo_cli.engine import Reader
from grpo_cli.engine.facts import ERRORS_KEPT, Skipped
from grpo_cli.errors import InputError, UsageError, checked
from grpo_cli.records import Reading
from grpo_cli.records.choose.grouping import read_grouping
from grpo_cli.records.choose.where import ASKED, Path, read_conditions, read_path
from grpo_cli.records.fields import ALIASES, canonical_name
from grpo_cli.records.formats import CANONICAL, FORMATS
from grpo_cli.records.open.budget import read_size
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.records.open.streams import is_empty, unopened
from grpo_cli.records.unread import VERSIONS
from grpo_cli.terminal.destination import keep_standard_output
from grpo_cli.terminal.messages import print_error, say
from grpo_cli.terminal.numbers import counted
from grpo_cli.variants import NAMES
from grpo_cli.variants.plan import Plan

_FORMATS = {CANONICAL: "records as this tool writes them"} | {
    name: one.title for name, one in FORMATS.items()
}
_FIELDS = {name: f"also {', '.join(others)}" if others else "" for name, others in ALIASES.items()}

Files = Annotated[
    list[str] | None, argument("FILE…", "JSON, JSONL, Parquet, Arrow, npz, …; a folder; or -.")
]

RunFiles = Annotated[
    list[str] | None, argument("RUN…", "Files, a folder or a 'pattern*' of one run; or -.")
]

Step = Annotated[
    str | None,
    option("--step", "FIELD", "Field that holds the step, e.g. meta.step; or file.", "Input"),
]


RESPONSE = option("--response", "N", "Show only this response, by its number from 0.", min=0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SourceOptions:
    """In which format the files are, which of their rows are read, and which go together."""

    from_: Annotated[
        str | None,
        option(
            "--from",
            "FORMAT",
            "Input format (`grpo formats`); default: detected.",
            "Input",
            autocompletion=complete.among(_FORMATS),
        ),
    ] = None
    mapped: Annotated[
        list[str] | None,
        option("--map", "NAME=PATH", "Read NAME from PATH, e.g. rewards=meta.x[0].", "Input"),
    ] = None
    where: Annotated[
        list[str] | None,
        option("--where", "TEST", "Read only matching records: 'step>=9 && env==1'."),
    ] = None
    group: Annotated[str | None, option("--group", "ID", "Read only this group.", "Input")] = None
    group_by: Annotated[
        str | None,
        option("--group-by", "FIELD,…", "Fields that all rows of a group share: step,uid."),
    ] = None
    group_size: Annotated[
        int | None,
        option(
            "--group-size",
            "N",
            "Every N rows, or N responses of a record, are one group.",
            "Input",
            min=1,
        ),
    ] = None
    group_anywhere: Annotated[
        bool,
        option("--group-anywhere", "", "Rows of a group in any order (needs memory).", "Input"),
    ] = False
    unpack: Annotated[
        str | None,
        option("--unpack", "SIZE", "Largest size a packed file may unpack to, e.g. 4G.", "Input"),
    ] = None

    def reading(self, record: str | None = None) -> Reading:
        """How the files are read, checked.

        Raises:
            UsageError: for a flag that cannot be understood, or flags that contradict each other.
        """
        if self.from_ is not None:
            complete.known("--from", self.from_, _FORMATS)
        by = [] if self.group_by is None else [self.group_by]
        return Reading(
            format=self.from_,
            mapped=tuple(checked(read_mapping, self.mapped or ())),
            where=read_conditions(self.where),
            grouping=read_grouping(by, self.group_size, anywhere=self.group_anywhere),
            record=record,
            group=self.group,
            unpack=read_size(self.unpack),
        )

    @property
    def words(self) -> list[str]:
        """These options as words of a command line."""
        single = {
            "--from": self.from_,
            "--group": self.group,
            "--group-by": self.group_by,
            "--group-size": self.group_size,
            "--unpack": self.unpack,
        }
        many = {"--map": self.mapped, "--where": self.where}
        given = [(flag, str(value)) for flag, value in single.items() if value is not None]
        given += [(flag, one) for flag, values in many.items() for one in values or ()]
        words = [word for pair in given for word in pair]
        return words + (["--group-anywhere"] if self.group_anywhere else [])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RecordOption:
    """Which record alone."""

    record: Annotated[
        str | None,
        option("--record", "ID", "Read only this record: its id, or number from 0.", "Input"),
    ] = None


ON_ERROR = option(
    "--on-error",
    "stop|skip",
    "Stop at an unreadable record, or skip it (default: stop; check: skip).",
    "Input",
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ErrorOptions:
    """Whether to stop at records that cannot be used."""

    on_error: Annotated[Literal["stop", "skip"], ON_ERROR] = "stop"
    max_errors: Annotated[
        int,
        option(
            "--max-errors",
            "N",
            f"Errors to print at most (default: {ERRORS_KEPT}; 0: all).",
            "Input",
            min=0,
        ),
    ] = ERRORS_KEPT


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorkOptions:
    """Where the work is done."""

    jobs: Annotated[
        int | None,
        option(
            "--jobs -j", "N", "Worker processes; default: by the input's size.", "Running", min=1
        ),
    ] = None
    on: Annotated[
        str | None, option("--on", "WHERE", "Run on Ray: ray, or ray://HOST:PORT.", "Running")
    ] = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoadingOptions(ErrorOptions, RecordOption, SourceOptions):
    """How the input is read by a command that answers for the data as a whole."""

    def reader(self, paths: Sequence[str], work: WorkOptions | None = None) -> Reader:
        """A reader of the files; in this process, or where ``work`` says."""
        return make_reader(paths, self.reading(self.record), self, work or WorkOptions(jobs=1))

    @property
    def words(self) -> list[str]:
        """These options as words of a command line."""
        words = super().words + ([] if self.record is None else ["--record", self.record])
        return words + (["--on-error", "skip"] if self.on_error == "skip" else [])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReadingOptions(ErrorOptions, SourceOptions, WorkOptions):
    """How the input is read."""

    def reader(self, paths: Sequence[str], record: str | None) -> Reader:
        """A reader of the files, or of one record of them."""
        return make_reader(paths, self.reading(record), self, self)


def make_reader(
    paths: Sequence[str], reading: Reading, errors: ErrorOptions, work: WorkOptions
) -> Reader:
    """A reader of the files."""
    if work.on is not None:
        keep_standard_output()  # Ray prints to it
    reader = Reader(
        paths,
        reading,
        skip=errors.on_error == "skip",
        most_errors=errors.max_errors,
        jobs=work.jobs,
        on=work.on,
    )
    if ASKED in reading.where:
        raise reader.nothing()
    return reader


def read_mapping(text: str) -> tuple[str, Path]:
    """``NAME=PATH`` of ``--map``.

    Raises:
        UsageError: for anything else, or a name that nothing reads.
    """
    name, equals, place = text.partition("=")
    name = name.strip()
    if not equals and name != "?":
        raise UsageError(f"--map: expected NAME=PATH, got {text!r}")
    known = canonical_name(name) or (
        name if name in {*hyperparameters.KNOWN, VERSIONS[0]} else None
    )
    if known is None:
        known = complete.known("--map", name, _FIELDS)
    return known, read_path(place.strip(), "--map")


def print_notes(notes: Iterable[str], *, quiet: bool) -> None:
    """Says what there was to say of the files."""
    for note in () if quiet else notes:
        say(f"note: {note}")


def print_errors(skipped: Skipped, start: int = 0, *, as_json: bool) -> int:
    """Prints the errors that are kept, from ``start`` on; returns how many are kept."""
    for error in skipped.first[start:]:
        print_error(error, as_json=as_json, every=not skipped.most)
    return len(skipped.first)


def print_skipped(skipped: Skipped, of: int | None = None) -> None:
    """Says how many errors were not printed, and how many records were skipped.

    Args:
        skipped: the records.
        of: how many there are with them; None: nobody counted.
    """
    if not skipped:
        return
    for error in skipped.first:
        if error.repeats:
            more = counted(error.repeats, "more record")
            files = len(error.sources | {error.source})
            more += f", {files:,} files in all" if files > 1 else ""
            say(f"… {error.place}: the same error in {more} (--max-errors 0 shows all)")
    if skipped.more:
        say(f"… {skipped.more:,} more errors (--max-errors 0 shows all)")
    part = "" if of is None else f"{skipped.count:,} of "
    say(f"skipped {part}{counted(of or skipped.count, 'record')}")


def finish(
    source: Reader, *plans: Plan, as_json: bool, quiet: bool, printed: Container[str] = ()
) -> int:
    """Tells what there is to know of the files and is not ``printed``; returns the exit code."""
    print_notes((note for note in source.notes(*plans) if note not in printed), quiet=quiet)
    print_errors(source.skipped, as_json=as_json)
    print_skipped(source.skipped)
    return InputError.exit_code if source.skipped else 0


def paths(files: list[str] | None) -> list[str]:
    """The files to read: those named, or standard input where it is not a terminal.

    Raises:
        UsageError: when there is nothing to read.
        InputError: for a folder or a pattern without a file of records; of several files, for
            all that cannot be opened, before any is read.
    """
    if files:
        places = expanded(files)
        named = {*files}
        empty = [one for one in places if one not in named and is_empty(one)]
        if len(empty) < len(places):  # as a step's file is while it is written
            places = [one for one in places if one not in empty]
            notes = [f"{one} is empty; skipped" for one in empty[:_FILES_NAMED]]
            if more := len(empty) - len(notes):
                notes.append(f"… {counted(more, 'more empty file')} skipped")
            print_notes(notes, quiet=False)
        refuse_unopened(places)
        return places
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no FILE given, and nothing is piped to standard input (try --help)")
    return ["-"]


def is_piped() -> bool:
    """Whether standard input has something to read."""
    if sys.stdin is None or sys.stdin.isatty():
        return False
    return bool(getattr(sys.stdin.buffer, "peek", lambda _: b" ")(1))


def refuse_unopened(places: Sequence[str]) -> None:
    """Refuses several files of which some cannot be opened; one alone is refused when it is read.

    Raises:
        InputError: for all of them.
    """
    errors = [*filter(None, map(unopened, dict.fromkeys(places)))] if len(places) > 1 else []
    for error in errors:
        if error.source and {*error.source.split(",")} <= {*NAMES}:
            are = "are variants" if "," in error.source else "is a variant"
            error.message += f"; {error.source} {are}: write -v {error.source} (several: -v A,B)"
    if errors:
        if more := len(errors[_FILES_NAMED:]):
            errors[_FILES_NAMED:] = [InputError(f"… {counted(more, 'more file')} cannot be read")]
        errors[0].others = errors[1:]
        raise errors[0]


_FILES_NAMED = 5
"""Files that a message names; the others are counted."""
