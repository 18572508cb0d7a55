"""The variants and the choices at each stage, as tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.grid import GAP, Column, column, fitting, grid, print_hidden, total_width
from grpo_cli.terminal.numbers import visible
from grpo_cli.terminal.screen import Screen

Entry = Mapping[str, Any]

_STAGES = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")

_SPARE: Sequence[str] = (
    *("hyperparameters", "aliases", "version", "checked", "title", "paper"),
    *("correction", "kl", "advantage", "ratio", "aggregate"),
)
"""What a narrow terminal goes without, the first to go first."""


def print_variants(console: Console, screen: Screen, variants: Sequence[Entry]) -> None:
    """Prints one line per variant: its names, its stages, and where it comes from."""
    rows = [{**row, **_stages(row)} for row in variants]
    names = ("name", "aliases", "paper", "version", "checked", *_STAGES, "title")
    hidden = _print(console, screen, rows, names)
    print_hidden(console, screen, [*hidden, "hyperparameters", "note"], "grpo explain NAME, --json")


def _stages(variant: Entry) -> dict[str, str]:
    """The names of the stages; with their hyperparameters a line would be hundreds wide."""
    bound: Mapping[str, str] = variant["stages"]
    return {stage: text.partition("[")[0] for stage, text in bound.items()}


def print_choices(console: Console, screen: Screen, stages: Mapping[str, Entry]) -> None:
    """Prints the choices at each stage, stage by stage."""
    hidden: dict[str, None] = {}
    for name, stage in stages.items():
        console.print(Text.assemble("\n", (name, "bold cyan"), f": {stage['question']}"))
        rows = [{"choice": choice, **one} for choice, one in stage["choices"].items()]
        names = ("choice", "aliases", "hyperparameters", "summary")
        hidden |= dict.fromkeys(_print(console, screen, rows, names))
    print_hidden(console, screen, hidden, "--json")


def print_changes(console: Console, screen: Screen, document: Entry) -> None:
    """Prints one line per change, and what it changed below."""
    for change in document["changes"]:
        rows = ", ".join(change["rows"])
        console.print(
            Text.assemble((f"{change['framework']} {change['since']}", "bold cyan"), f"  {rows}")
        )
        for text in (change["what"], f"before: {', '.join(change['before'])}"):
            console.print(Text(textwrap.indent(_filled(text, screen.width), "  ")))


def _filled(text: str, width: int | None) -> str:
    return textwrap.fill(text, max((width or 100) - GAP, 20), break_on_hyphens=False)


def _print(
    console: Console, screen: Screen, rows: Sequence[Entry], names: Sequence[str]
) -> list[str]:
    """Prints the columns that hold anything and returns the names of those without room."""
    columns = [
        column(name, [row.get(name) for row in rows], show=_text)
        for name in names
        if any(row.get(name) for row in rows)
    ]
    kept, hidden = fitting(columns, _SPARE, screen.width)
    console.print(grid([*kept[:-1], _wrapped(kept, screen.width)]))
    return hidden


def _wrapped(columns: Sequence[Column], width: int | None) -> Column:
    """The last column, its text broken into lines where the terminal ends."""
    last = columns[-1]
    if width is None or (room := width - total_width(columns[:-1])) >= last.width:
        return last
    texts = [textwrap.fill(cell.plain, max(room - GAP, 20)) for cell in last.cells]
    return column(last.name, texts, show=str)


def _text(value: Any) -> str:
    if isinstance(value, str | None):
        return visible(value or "").replace("``", "")
    return ", ".join(map(_text, value))
