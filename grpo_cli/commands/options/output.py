"""What the options of output have in common: where it goes, in which format, how much is told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from grpo_cli.errors import UsageError

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
