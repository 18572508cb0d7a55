"""A variant's page, and why a loss is what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.grid import column, grid, with_words
from grpo_cli.terminal.numbers import adding_up, decimals, equality, fixed, shown_among
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

Entry = Mapping[str, Any]
_NEAR = 25
_INDENT = 2


def print_page(console: Console, screen: Screen, page: Entry) -> None:
    """Prints a variant's page: formula, stages, hyperparameters, origin, and what is like it."""
    width = screen.reading
    names = ", ".join([page["variant"], *page["aliases"]])
    head = Text.assemble((names, "bold cyan"), f": {page['title']}")
    console.print(wrapped(head, width, _INDENT))
    console.print(Text("\n") + wrapped(Text(f"  {page['formula']}\n", "bold"), width, _INDENT * 2))
    for stage in page["stages"]:
        _print_stage(console, stage, width)
    _print_hyperparameters(console, screen, page["hyperparameters"])
    console.print()
    _print_origin(console, page, width)
    _print_related(console, page, width)


def _print_stage(console: Console, stage: Entry, width: int) -> None:
    symbol = (f"{stage['symbol']:>3}", "bold")
    console.print(Text.assemble(symbol, f"  {stage['stage']}: ", (stage["choice"], "cyan")))
    console.print(wrapped(Text(f"     {stage['summary']}"), width, 5))


def _print_hyperparameters(console: Console, screen: Screen, rows: Sequence[Entry]) -> None:
    if not rows:
        return
    console.print(Text("\nhyperparameters", "bold"))
    columns = [
        column("name", [row["name"] for row in rows]),
        column("value", [row["value"] for row in rows], show=_value),
        column("also called", [", ".join(row["aliases"]) for row in rows], show=str),
        column("meaning", [row["meaning"] for row in rows], show=str),
    ]
    kept, _ = with_words(columns, ("also called",), screen.reading)
    console.print(grid(kept))


def _value(value: Any) -> str:
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _print_origin(console: Console, page: Entry, width: int) -> None:
    if page["paper"]:
        console.print(Text(f"paper    https://arxiv.org/abs/{page['paper']}"))
    if page["version"]:
        console.print(Text(f"version  {page['version']}"))
    if page["until"]:
        console.print(Text(f"until    {page['until']}; newer releases do not have it"))
    console.print(Text(f"checked  {page['checked']}"))
    console.print(wrapped(Text(f"note     {page['note']}"), width, 9))


def _print_related(console: Console, page: Entry, room: int) -> None:
    if page["same"]:
        alike = Text(f"the same choices: {', '.join(page['same'])}")
        console.print(Text("\n") + wrapped(alike, room, _INDENT))
    if page["near"]:
        console.print(Text("\nlike it, but for", "bold"))
        width = max(len(one["variant"]) for one in page["near"])
        for one in page["near"][:_NEAR]:
            apart = "; ".join(f"{stage} {choice}" for stage, choice in one["differs"].items())
            line = Text.assemble("  ", (f"{one['variant']:{width}}", "cyan"), f"  {apart}")
            console.print(wrapped(line, room, width + 4))
        if len(page["near"]) > _NEAR:
            console.print(Text(f"  … {len(page['near']) - _NEAR} more (see --json)", "dim"))


def print_why(console: Console, screen: Screen, document: Entry) -> None:
    """Prints the loss, what J is made of, and the reasons."""
    total, parts = document["total"], document["parts"]
    loss = shown_among(total["loss"], total["gradient_norm"])
    whose = f" of the batch: {_counts(total)}" if total["records"] > 1 else ""
    console.print(Text.assemble(("loss ", "cyan"), (loss, "bold"), whose))
    width = screen.reading
    console.print(wrapped(Text(_made_of(parts, total["objective"])), width, len("J  = ")))
    console.print(Text("\nwhy", "bold"))
    for reason in document["why"]:
        console.print(wrapped(Text(f"  · {reason['text']}"), width, _INDENT * 2))


def _counts(total: Entry) -> str:
    names = ("records", "responses", "tokens")
    return ", ".join(f"{total[one]:,} {one[:-1] if total[one] == 1 else one}" for one in names)


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
    total = fixed(objective, places)
    return f"J  = {total} {equality(texts, total)} {' '.join(terms).removeprefix('+ ')}"


def _signed(value: float, places: int) -> str:
    return f"{'−' if value < 0 else '+'} {abs(value):.{places}f}"
