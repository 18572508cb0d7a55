"""What the options of output have in common: where it goes, in which format, how much is told."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grpo_cli.errors import InputError, UsageError

TableFormat = Literal["table", "json", "jsonl", "csv", "markdown"]
Json = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes on standard error.")]


def output_option(text: str) -> Any:
    """``-o``, with the help that a command gives it."""
    return typer.Option("--output", "-o", metavar="FILE", help=text, show_default=False)


Output = Annotated[str | None, output_option("Write here, whole or not at all.")]


def format_of(given: str | None, *, as_json: bool) -> str:
    """The format's name, from ``--format`` and ``--json``; ``table`` without them.

    Raises:
        UsageError: where they contradict each other.
    """
    if as_json and given not in (None, "json"):
        raise UsageError(f"--json contradicts --format {given}")
    return "json" if as_json else given or "table"


_FLAGS = {"output": "-o", "html": "--html", "svg": "--svg"}


def keep_input(values: Mapping[str, Any]) -> None:
    """Looks, among the options of a command, for a result that would replace what is read.

    ``convert``, which has ``to``, may: what it writes evaluates to the same numbers.

    Raises:
        UsageError: where there is one.
    """
    if "to" in values:
        return
    for name, flag in _FLAGS.items():
        target = values.get(name)
        if isinstance(target, str) and Path(target).is_file():
            from grpo_cli.records.open.folders import files as expanded  # numpy comes with it

            with suppress(InputError):  # of what cannot be read the command says more
                for path in expanded(values.get("files") or []):
                    if Path(path).exists() and Path(path).samefile(target):
                        raise UsageError(f"{flag} {target} is the input: name another file")
