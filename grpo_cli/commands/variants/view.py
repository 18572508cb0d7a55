"""The variants and the choices at each stage, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.grid import print_hidden, print_list
from grpo_cli.terminal.screen import Screen

Entry = Mapping[str, Any]

_STAGES = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")

_SPARE: Sequence[str] = (
    *("hyperparameters", "version", "checked", "correction", "kl", "ratio", "paper"),
    *("advantage", "aggregate", "surrogate"),
)
"""Columns that a narrow terminal leaves out, the first to go first."""


def print_all(
    console: Console, screen: Screen, variants: Sequence[Entry], stages: Mapping[str, Entry]
) -> None:
    """Prints the variants, then the choices at each stage."""
    print_variants(console, screen, variants)
    if stages:
        console.print()
        print_choices(console, screen, stages)


def print_variants(console: Console, screen: Screen, variants: Sequence[Entry]) -> None:
    """Prints one line per variant: its names, its stages, and where it comes from."""
    rows = [{**row, **_stages(row), "title": _also(row, "title")} for row in variants]
    names = ("name", "paper", "version", "checked", *_STAGES, "title")
    hidden = print_list(console, screen, rows, names, _SPARE)
    print_hidden(console, screen, [*hidden, "hyperparameters", "note"], "grpo explain NAME, --json")


def _stages(variant: Entry) -> dict[str, str]:
    """The names of the stages; with their hyperparameters a line would be hundreds wide."""
    bound: Mapping[str, str] = variant["stages"]
    return {stage: text.partition("[")[0] for stage, text in bound.items()}


def print_choices(console: Console, screen: Screen, stages: Mapping[str, Entry]) -> None:
    """Prints the choices at each stage, stage by stage."""
    hidden: dict[str, None] = {}
    for at, (name, stage) in enumerate(stages.items()):
        console.print(
            Text.assemble("\n" if at else "", (name, "bold cyan"), f": {stage['question']}")
        )
        rows = [
            {"choice": choice, **one, "summary": _also(one, "summary")}
            for choice, one in stage["choices"].items()
        ]
        names = ("choice", "hyperparameters", "summary")
        hidden |= dict.fromkeys(print_list(console, screen, rows, names, _SPARE))
    print_hidden(console, screen, hidden, "--json")


def _also(row: Entry, about: str) -> str:
    """A row's title, its other names, and the last release that has it."""
    others = f"also {', '.join(row['aliases'])}" if row["aliases"] else ""
    until = f"until {row['until']}" if row.get("until") else ""
    more = "; ".join(part for part in (others, until) if part)
    return f"{row[about]} ({more})" if more else str(row[about])


def print_changes(console: Console, screen: Screen, changes: Sequence[Entry]) -> None:
    """Prints one row per change of a release: which rows, what, and the rows before it."""
    rows = [
        {
            "release": f"{one['framework']} {one['since']}",
            "what changed": f"{', '.join(one['rows'])}: {one['what']}\n"
            f"before: {', '.join(one['before'])}",
        }
        for one in changes
    ]
    print_list(console, screen, rows, ("release", "what changed"))


def print_hyperparameters(console: Console, screen: Screen, rows: Sequence[Entry]) -> None:
    """Prints one line per hyperparameter: its name, what it means, and what others call it."""
    listed = [{**row, "meaning": _also(row, "meaning")} for row in rows]
    print_list(console, screen, listed, ("name", "meaning"))
