"""The formats and the names of fields, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen


def print_formats(console: Console, screen: Screen, document: Mapping[str, Any]) -> None:
    """Prints each format with what it lacks, then every name of each field."""
    for one in document["formats"]:
        head = Text.assemble((one["name"], "bold cyan"), f"  {one['title']}")
        console.print(wrapped(head, screen.width, 4))
        for lack in one["lacks"]:
            console.print(wrapped(Text(f"    {lack}"), screen.width, 4))
    console.print(Text("\nfields and their other names", "bold"))
    for name, aliases in document["names"].items():
        words = f": {', '.join(aliases)}" if aliases else ""
        line = Text.assemble("    ", (name, "cyan"), words)
        console.print(wrapped(line, screen.width, 6))
