"""A choice at a stage explained: what it computes, what it takes, and which variants make it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Iterable, Mapping
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.help.words import print_word
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
    doc = (inspect.getdoc(choice.function) or choice.summary).replace("``", "").split("\n\n")
    description = [
        " ".join(section.split())
        for section in doc
        if not section.startswith(("Args:", "Returns:", "Raises:"))  # for programmers
    ]
    return {
        "stage": place,
        "question": stage.question,
        "choice": name,
        "aliases": [alias for alias, of in stage.aliases.items() if of == name],
        "description": description,
        "symbols": symbols(place, description, choice.hyperparameters),
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
        full = chosen().full
        for paragraph in one["description"]:
            if full or not paragraph.startswith("References:"):
                console.print(wrapped(Text(f"  {paragraph}"), width, 2))
        for part in ("symbols", "hyperparameters"):
            if one[part]:
                console.print(Text(f"\n{part}", "bold"))
            for name, meaning in one[part].items():
                text = Text.assemble("  ", (name, "cyan"), f"  {meaning}")
                console.print(wrapped(text, width, 4))
        named = (
            [n for n in one["variants"] if "/" not in n][:_MOST] if not full else one["variants"]
        )
        if rest := len(one["variants"]) - len(named):
            named = [*named, f"{rest} more (--full, which has the references too)"]
        made = ", ".join(named) or "none"
        console.print()
        console.print(wrapped(Text(f"variants that use it: {made}"), width, 2))


_MOST = 8
"""Variants that are listed without ``--full``."""

# ---- what the letters of a formula mean, where the description does not say ----------------------

_INDEX = "ₜᵢⱼₖₛ"
_DEFINED = (
    r"(?:\(\w\))?(?: =| being| and \w (?:being|the) | is (?:the|a) | counts |,? (?:the|their) )"
)
_NOT_BEFORE = {"A": "(?! [a-z])", "s": "(?![−)])"}
"""Excludes an article, and the index of a sum."""


_TABLES: Mapping[str, Mapping[str, str | list[str]]] = json.loads(
    files(__package__).joinpath("symbols.json").read_text(encoding="utf-8")
)
"""Stage → symbol → its meaning; under "" those of all stages.

A meaning is in words, or the hyperparameters of which a choice takes one.
"""


def symbols(stage: str, paragraphs: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Each symbol that a description uses and does not define → what it means at that stage.

    Args:
        stage: the stage's name.
        paragraphs: the description.
        taken: the hyperparameters of the choice.
    """
    text = " ".join(one for one in paragraphs if not one.startswith("References:"))
    of_stage = _TABLES.get(stage, {})
    known = {**of_stage, **_TABLES[""], **of_stage}  # in this order, the stage's own meanings
    meanings = {
        name: one if isinstance(one, str) else next((key for key in one if key in taken), "")
        for name, one in known.items()
    }
    undefined = {
        name: meaning
        for name, meaning in meanings.items()
        if meaning and not re.search(_pattern(name) + _DEFINED, text)
    }
    used = text
    while True:  # symbols in a meaning have meanings as well
        found = {name: one for name, one in undefined.items() if re.search(_pattern(name), used)}
        more = " ".join([text, *found.values()])
        if more == used:
            return found
        used = more


def _pattern(name: str) -> str:
    index = f"[{_INDEX}]?" if len(name) == 1 else ""
    if name == "|o|":
        return rf"\|o[{_INDEX}]?\|"
    after = _NOT_BEFORE.get(name, "")
    return rf"(?<![\w.\-′']){re.escape(name)}{index}(?![\w\u0304′₊₋'-]){after}"
