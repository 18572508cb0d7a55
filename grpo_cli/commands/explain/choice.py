"""A choice at a stage explained: what it computes, what it takes, and which variants make it."""

from __future__ import annotations

import inspect
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.explain.symbols import symbols
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.choice import Bound
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import STAGES, VARIANTS


def is_choice(name: str) -> bool:
    """Whether a stage has a choice of that name, or under that name of a framework."""
    return any(name in stage.choices or name in stage.aliases for stage in STAGES.values())


def describe_choice(name: str) -> dict[str, Any]:
    """All that the tables know of the choice, at each stage that has it."""
    found = {
        place: stage.aliases.get(name, name)
        for place, stage in STAGES.items()
        if name in stage.choices or name in stage.aliases
    }
    return {"choices": [_described(place, choice) for place, choice in found.items()]}


def _described(place: str, name: str) -> dict[str, Any]:
    stage = STAGES[place]
    choice = stage.choices[name]
    description = _paragraphs(inspect.getdoc(choice.function) or choice.summary)
    return {
        "stage": place,
        "question": stage.question,
        "choice": name,
        "aliases": [alias for alias, of in stage.aliases.items() if of == name],
        "description": description,
        "symbols": symbols(place, description, choice.hyperparameters),
        "hyperparameters": {one: HYPERPARAMETERS[one].meaning for one in choice.hyperparameters},
        "variants": [row for row, variant in VARIANTS.items() if _makes(variant, place, name)],
    }


def _paragraphs(doc: str) -> list[str]:
    """The paragraphs of a docstring, without what is said to programmers."""
    sections = [section.replace("``", "") for section in doc.split("\n\n")]
    wanted = [one for one in sections if not one.startswith(("Args:", "Returns:", "Raises:"))]
    return [" ".join(one.split()) for one in wanted]


def _makes(variant: object, place: str, name: str) -> bool:
    bound = getattr(variant, place)
    return isinstance(bound, Bound) and bound.name == name


def print_choice(console: Console, screen: Screen, page: dict[str, Any]) -> None:
    """Prints a page for each stage that has the choice."""
    width = screen.reading
    for at, one in enumerate(page["choices"]):
        names = ", ".join([one["choice"], *one["aliases"]])
        about = f": --{one['stage']}, {one['question']}"
        console.print(Text.assemble("\n" if at else "", (names, "bold cyan"), about))
        console.print()
        for paragraph in one["description"]:
            console.print(wrapped(Text(f"  {paragraph}"), width, 2))
        if one["symbols"]:
            console.print(Text("\nsymbols", "bold"))
        for symbol, meaning in one["symbols"].items():
            console.print(wrapped(Text.assemble("  ", (symbol, "cyan"), f"  {meaning}"), width, 4))
        if one["hyperparameters"]:
            console.print(Text("\nhyperparameters", "bold"))
        for name, meaning in one["hyperparameters"].items():
            console.print(wrapped(Text.assemble("  ", (name, "cyan"), f"  {meaning}"), width, 4))
        made = ", ".join(one["variants"]) or "none"
        console.print()
        console.print(wrapped(Text(f"variants that make it: {made}"), width, 2))
