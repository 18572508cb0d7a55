"""Errors and notes on standard error, and the exit codes they lead to."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import orjson
import typer

from grpo_cli.errors import GrpoError, InputError, Listing, UsageError
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import counted, escaped_json, visible


@contextmanager
def failures(*, as_json: bool = False, hint: str = "") -> Iterator[None]:
    """Tells an error of the user's in one line and ends the command with its exit code.

    Args:
        as_json: whether the error is an object.
        hint: a note after an error of a record that is not the first of its file.
    """
    try:
        yield
    except Listing as answer:
        _print_names(answer)
        raise typer.Exit(answer.exit_code) from None
    except GrpoError as error:
        print_error(error, as_json=as_json)
        if isinstance(error, InputError) and (error.line or 0) > 1 and hint and not as_json:
            say(f"note: {hint}")
        raise typer.Exit(error.exit_code) from None


def print_error(error: GrpoError, *, as_json: bool, every: bool = False) -> None:
    """Prints an error, or each of several: a line, or a JSON object where the output is JSON.

    A record's errors that differ by their indices alone are one line, unless ``every`` is wanted.
    """
    as_json &= not chosen().to_file
    kinds: Collection[Sequence[GrpoError]] = [[error]]
    if isinstance(error, UsageError) and error.each:
        kinds = [[one] for one in error.each]
    if isinstance(error, InputError):
        kinds = [[one] for one in error.each] if every or as_json else error.alike.values()
    for one, *others in kinds:
        if as_json:
            _print(escaped_json(orjson.dumps({"error": described(one)})).decode())
        else:
            more = counted(len(others), "more place")
            say(f"{one} (also at {more} of this record)" if others else str(one))


def _print_names(answer: Listing) -> None:
    """Prints the names that were asked for, with their meanings, on standard output."""
    from grpo_cli.terminal.grid import print_list  # rich comes with them
    from grpo_cli.terminal.paging import print_page

    rows = [{"name": name, "meaning": meaning} for name, meaning in answer.names.items()]
    names = ("name", "meaning") if any(answer.names.values()) else ("name",)
    with destination(None) as stream:
        print_page(stream, lambda *to: print_list(to[0], to[1], rows, names), "page")


def say(text: str) -> None:
    """Prints one line, without what could move a terminal's cursor.

    A terminal breaks lines anywhere, so there it is broken between words.
    """
    line = f"grpo: {visible(text)}"
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.text import Text  # imported here: most runs have nothing to say

        from grpo_cli.terminal.prose import wrapped

        width = shutil.get_terminal_size().columns
        line = wrapped(Text(line), width, len("grpo: ")).plain
    _print(line)


def _print(line: str) -> None:
    """Prints a line; if standard error is full, the exit code stays what it is."""
    try:
        typer.echo(line, err=True)
    except OSError:
        sys.stderr = None  # or Python tries again at its end, and exits with its own code


def described(error: GrpoError) -> dict[str, object]:
    """An error as ``--json`` shows it."""
    place = error if isinstance(error, InputError) else None
    kind = "input" if place else "usage" if isinstance(error, UsageError) else "error"
    return {
        "kind": kind,
        "source": place.source if place else None,
        "line": place.line if place else None,
        "path": (place.path or None) if place else None,
        "message": place.message if place else str(error),
    }
