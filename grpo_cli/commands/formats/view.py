"""The formats and the names of fields, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grpo_cli.terminal.screen import Screen


def print_formats(console: Console, screen: Screen, document: Mapping[str, Any]) -> None:
    """Prints each format with what it lacks, then every name of each field."""
    del screen
    for one in document["formats"]:
        console.print(Text.assemble((one["name"], "bold cyan"), f"  {one['title']}"))
        for lack in one["lacks"]:
            console.print(Padding(Text(lack), (0, 0, 0, 4)))
    console.print(Text("\nfields and their other names", "bold"))
    for name, aliases in document["names"].items():
        words = f": {', '.join(aliases)}" if aliases else ""
        console.print(Padding(Text.assemble((name, "cyan"), words), (0, 0, 0, 4)))
