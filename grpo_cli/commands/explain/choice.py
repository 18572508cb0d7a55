"""A choice at a stage explained: what it computes, what it takes, and which variants make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.help.words import described_by, print_paragraphs, print_word
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.choice import Bound
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import STAGES, VARIANTS


def is_choice(name: str) -> bool:
    """Whether a stage has a choice of that name, or under that name of a framework."""
    return bool(_named(name))


def _named(name: str) -> dict[str, str]:
    """Stage → the choice of that name there; one stage's for ``adv:given`` of a signature."""
    key, _, own = name.partition("[")[0].rpartition(":")
    return {
        place: stage.aliases.get(own, own)
        for place, stage in STAGES.items()
        if (own in stage.choices or own in stage.aliases) and key in ("", place, stage.key)
    }


def describe_choice(name: str) -> dict[str, Any]:
    """All that the tables know of the choice, at each stage that has it."""
    return {"choices": [_described(place, choice) for place, choice in _named(name).items()]}


def _described(place: str, name: str) -> dict[str, Any]:
    stage = STAGES[place]
    choice = stage.choices[name]
    return {
        "stage": place,
        "question": stage.question,
        "choice": name,
        "aliases": [alias for alias, of in stage.aliases.items() if of == name],
        "description": described_by(choice.function) or [choice.summary],
        "hyperparameters": {one: HYPERPARAMETERS[one].meaning for one in choice.hyperparameters},
        "variants": [
            row
            for row, variant in VARIANTS.items()
            if isinstance(bound := getattr(variant, place), Bound) and bound.name == name
        ],
    }


def print_choice(console: Console, screen: Screen, page: Mapping[str, Any]) -> None:
    """Prints what the name means as a word, then a page for each stage that has the choice."""
    width = screen.reading
    if "word" in page:
        print_word(console, screen, page["word"])
        console.print()
    for at, one in enumerate(page["choices"]):
        names = ", ".join([one["choice"], *one["aliases"]])
        about = f": --{one['stage']}, {one['question']}"
        console.print(Text.assemble("\n" if at else "", (names, "bold cyan"), about))
        console.print()
        print_paragraphs(console, screen, one["description"])
        if one["hyperparameters"]:
            console.print(Text("\nhyperparameters", "bold"))
        for name, meaning in one["hyperparameters"].items():
            text = Text.assemble("  ", (name, "cyan"), f"  {meaning}")
            console.print(wrapped(text, width, 4))
        named = (
            one["variants"]
            if chosen().full
            else [n for n in one["variants"] if "/" not in n][:_MOST]
        )
        if rest := len(one["variants"]) - len(named):
            named = [*named, f"{rest} more (--full, which has the references too)"]
        made = ", ".join(named) or "none"
        console.print()
        console.print(wrapped(Text(f"variants that use it: {made}"), width, 2))


_MOST = 8
"""Variants that are listed without ``--full``."""
