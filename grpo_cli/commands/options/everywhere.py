"""Commands for Typer: options in dataclasses, the flags that every command has, what was typed."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import typer

from grpo_cli.commands.options.option import ALL, option
from grpo_cli.errors import InputError, UsageError
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.display import Display, When, displaying
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.numbers import shell_line

Command = Callable[..., int | None]
"""Returns the exit code; None for 0."""


def _parameters(bundle: Any) -> list[inspect.Parameter]:
    """The fields of a dataclass that are options, as parameters; not those in its ``unused``."""
    hints = get_type_hints(bundle, include_extras=True)
    unused = getattr(bundle, "unused", ())
    empty = inspect.Parameter.empty
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(bundle)
        if hasattr(hints[one.name], "__metadata__") and one.name not in unused
    ]


def _print_help(context: Any, wanted: Any) -> None:
    """Prints the options of all panels, and ends the command."""
    if wanted:
        context.meta[ALL] = True
        print_help(context, None, wanted)


def print_help(context: Any, _parameter: Any, wanted: Any) -> None:
    """Prints the help of a command, in the pager where it is long, and ends the command."""
    if not wanted or context.resilient_parsing:
        return
    from grpo_cli.terminal.paging import deliver  # rich comes with it
    from grpo_cli.terminal.screen import screen_of

    text = context.get_help()
    with destination(None) as stream:
        deliver(f"{text}\n", stream, screen_of(stream), "page")
    context.exit()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DisplayOptions:
    """What every command shows on a terminal."""

    color: Annotated[
        When, option("--color", "auto|always|never", "Colours; auto: on a terminal.", "Output")
    ] = "auto"
    full: Annotated[
        bool, option("--full", "", "Print all rows, not only what fits the screen.")
    ] = False
    no_pager: Annotated[
        bool, option("--no-pager", "", "Print directly, not through $PAGER.", "Output")
    ] = False
    help_all: Annotated[
        bool,
        option(
            "--help-all",
            "",
            "Print all options and exit.",
            "Output",
            is_eager=True,
            callback=_print_help,
        ),
    ] = False


class FileDisplayOptions(DisplayOptions):
    """What commands show that write a file, which is never cut."""

    unused = ("full",)


def displayed(command: Command, *, file: bool = False) -> Command:
    """A command as Typer takes it, with the flags of ``DisplayOptions``.

    Every parameter that is a dataclass is spread into its fields, which Typer reads as options; the
    command still receives the dataclass. Errors of the user's end it in a line.

    Args:
        command: what the flags are added to.
        file: whether it writes a file and prints no table.
    """
    hints = get_type_hints(command, include_extras=True)
    kinds: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    bundles = {name: _parameters(kind) for name, kind in kinds.items()}
    own: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        alone = one.replace(annotation=hints[one.name])
        own += bundles.get(one.name, [alone])
    formats = next((_choices(one.annotation) for one in own if one.name == "format"), ())

    def run(
        *, color: When, full: bool = False, no_pager: bool, help_all: bool, **values: Any
    ) -> NoReturn:
        del help_all  # its callback ends the command
        instead = _options_of_suffix(values, formats) if formats else {}
        values |= instead or {}
        to_file = values.get("output") not in (None, "-")
        full |= to_file  # which has room
        as_json = bool(values.get("json") or values.get("as_json"))
        as_json |= values.get("format") == "json"
        display = Display(color, full=full, pager=not no_pager, to_file=to_file)
        with displaying(display), failures(as_json=as_json):
            refuse_input_as_output(values)
            _refuse_other_suffix(values, page=file and "to" not in values)
            if instead is None:
                raise UsageError(_unwritable(values["output"], formats, html="html" in values))
            for name, options in bundles.items():
                values[name] = kinds[name](**{one.name: values.pop(one.name) for one in options})
            raise typer.Exit(command(**values) or 0)

    own += _parameters(FileDisplayOptions if file else DisplayOptions)
    made = functools.wraps(command)(run)
    made.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    made.__annotations__ = {one.name: one.annotation for one in own}
    return made


_SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".md": "markdown",
    ".parquet": "parquet",
}
_PAGES = (".html", ".htm")
_OTHERS = (
    *(".arrow", ".feather", ".gz", ".npz", ".pdf", ".png", ".pt", ".svg"),
    *(".tsv", ".xlsx", ".zst"),
)
"""Formats that no table is written in."""
_TEXTS = (".txt", ".log", ".out")


def _options_of_suffix(values: Mapping[str, Any], formats: Sequence[str]) -> dict[str, Any] | None:
    """The options that the suffix of --output implies, where no flag says the format.

    None where the command writes no format of that suffix; a table has none, or a text's.
    """
    output = values.get("output") or ""
    given = any(values.get(name) for name in ("format", "json", "as_json", "only"))
    if given or output.endswith("/") or Path(output).is_dir():
        return {}
    suffix = Path(output).suffix.lower()
    if suffix in _PAGES and "html" in values and values["html"] is None:
        return {"html": output, "output": None}
    if _SUFFIXES.get(suffix) in formats:
        return {"format": _SUFFIXES[suffix]}
    return {} if suffix in _TEXTS or not suffix[1:].isalpha() else None


def _refuse_other_suffix(values: Mapping[str, Any], *, page: bool) -> None:
    """Refuses to write a page, or a picture, into a file whose name is that of another format.

    Args:
        values: the options.
        page: whether --output is a page.

    Raises:
        UsageError: for such a file.
    """
    if not values.get("files") and (sys.stdin is None or sys.stdin.isatty()):
        return  # nothing is read, of which the command says more
    written = {"html": _PAGES, "svg": (".svg",), "output": _PAGES if page else ()}
    for name, suffixes in written.items():
        suffix = Path(values.get(name) or "").suffix.lower()
        if suffixes and suffix not in suffixes and suffix in {*_SUFFIXES, *_PAGES, *_OTHERS}:
            raise UsageError(f"{_FLAGS[name]} {values[name]}: the name must end in {suffixes[0]}")


def _unwritable(output: str, formats: tuple[str, ...], *, html: bool) -> str:
    known = [one for one, format in _SUFFIXES.items() if format in formats and one != ".ndjson"]
    known += [".html"] if html else []
    ends = f"the name must end in {', '.join(known[:-1])} or {known[-1]}"
    return f"-o {output}: {ends}, or write the table under any name with -f table"


def _choices(annotation: Any) -> tuple[str, ...]:
    """The strings of a ``Literal``, however deep it is in an annotation."""
    if isinstance(annotation, str):
        return (annotation,)
    return tuple(name for one in get_args(annotation) for name in _choices(one))


def command_line() -> str:
    """``grpo`` and its arguments, as a shell takes them."""
    return shell_line(["grpo", *sys.argv[1:]])


_FLAGS = {"output": "-o", "html": "--html", "svg": "--svg"}


def refuse_input_as_output(values: Mapping[str, Any]) -> None:
    """Refuses to write a result over a file that is read.

    ``convert``, which has ``to``, may do so with a file that is named: what it writes evaluates to
    the same numbers. In a folder it would be read with the others the next time.

    Raises:
        UsageError: for an option that names such a file.
    """
    given = values.get("files") or []
    named = given if "to" in values else ()
    for name, flag in _FLAGS.items():
        target = values.get(name)
        if isinstance(target, str) and Path(target).is_file():
            from grpo_cli.records.open.folders import files as expanded  # numpy comes with it

            with suppress(InputError):  # of what cannot be read the command says more
                for path in expanded(given):
                    same = Path(path).exists() and Path(path).samefile(target)
                    if same and path not in named:
                        raise UsageError(f"{flag} {target} is the input: name another file")
