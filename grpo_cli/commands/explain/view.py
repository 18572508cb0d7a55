"""A variant's page, and why a loss is what it is."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.grid import column, fitting, grid
from grpo_cli.terminal.numbers import shown
from grpo_cli.terminal.rounding import adding_up, decimals, fixed
from grpo_cli.terminal.screen import Screen

Entry = Mapping[str, Any]
_WIDTH = 100
_NEAR = 25


def print_page(console: Console, screen: Screen, page: Entry) -> None:
    """Prints a variant's page: formula, stages, hyperparameters, origin, and what is like it."""
    width = min(screen.width or _WIDTH, _WIDTH)
    names = ", ".join([page["variant"], *page["aliases"]])
    console.print(Text.assemble((names, "bold cyan"), f": {page['title']}"))
    console.print(Text(f"\n  {page['formula']}\n", "bold"))
    for stage in page["stages"]:
        _print_stage(console, stage, width)
    _print_hyperparameters(console, screen, page["hyperparameters"])
    console.print()
    _print_origin(console, page, width)
    _print_related(console, page)


def _print_stage(console: Console, stage: Entry, width: int) -> None:
    symbol = (f"{stage['symbol']:>3}", "bold")
    console.print(Text.assemble(symbol, f"  {stage['stage']}: ", (stage["choice"], "cyan")))
    for line in textwrap.wrap(stage["summary"], width - 5):
        console.print(Text(f"     {line}"))


def _print_hyperparameters(console: Console, screen: Screen, rows: Sequence[Entry]) -> None:
    if not rows:
        return
    console.print(Text("\nhyperparameters", "bold"))
    columns = [
        column("name", [row["name"] for row in rows]),
        column("value", [row["value"] for row in rows], show=_value),
        column("meaning", [row["meaning"] for row in rows], show=str),
        column("also called", [", ".join(row["aliases"]) for row in rows], show=str),
    ]
    kept, _ = fitting(columns, ("also called",), screen.width)
    console.print(grid(kept))


def _value(value: Any) -> str:
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _print_origin(console: Console, page: Entry, width: int) -> None:
    if page["paper"]:
        console.print(Text(f"paper    https://arxiv.org/abs/{page['paper']}"))
    if page["version"]:
        console.print(Text(f"version  {page['version']}"))
    console.print(Text(f"checked  {page['checked']}"))
    for at, line in enumerate(textwrap.wrap(page["note"], width - 9)):
        console.print(Text(f"{'note' if not at else '':9}{line}"))


def _print_related(console: Console, page: Entry) -> None:
    if page["same"]:
        console.print(Text(f"\nthe same choices: {', '.join(page['same'])}"))
    if page["near"]:
        console.print(Text("\nlike it, but for", "bold"))
        width = max(len(one["variant"]) for one in page["near"])
        for one in page["near"][:_NEAR]:
            apart = "; ".join(f"{stage} {choice}" for stage, choice in one["differs"].items())
            console.print(Text.assemble("  ", (f"{one['variant']:{width}}", "cyan"), f"  {apart}"))
        if len(page["near"]) > _NEAR:
            console.print(Text(f"  … {len(page['near']) - _NEAR} more (see --json)", "dim"))


def print_why(console: Console, screen: Screen, document: Entry) -> None:
    """Prints the loss, what J is made of, and the reasons."""
    total, parts = document["total"], document["parts"]
    console.print(Text.assemble(("loss ", "cyan"), (shown(total["loss"]), "bold")))
    console.print(Text(_made_of(parts, total["objective"])))
    console.print(Text("\nwhy", "bold"))
    width = min(screen.width or _WIDTH, _WIDTH)
    for reason in document["why"]:
        for at, line in enumerate(textwrap.wrap(reason["text"], width - 4)):
            console.print(Text(f"  {'·' if not at else ' '} {line}"))


_PARTS = {
    "positive_advantages": "where A > 0",
    "negative_advantages": "where A < 0",
    "kl_penalty": "KL penalty",
    "entropy_bonus": "entropy bonus",
}


def _made_of(parts: Mapping[str, float], objective: float) -> str:
    """J as the sum of its parts, as printed."""
    named = {name: value for name, value in parts.items() if value or name != "kl_penalty"}
    places = decimals([*named.values(), objective])
    texts = adding_up([*named.values()], objective, places)
    terms = [
        f"{_signed(float(text), places)} ({_PARTS[name]})"
        for name, text in zip(named, texts, strict=True)
    ]
    return f"J  = {fixed(objective, places)} = {' '.join(terms).removeprefix('+ ')}"


def _signed(value: float, places: int) -> str:
    return f"{'−' if value < 0 else '+'} {abs(value):.{places}f}"
