"""Names explained: a variant by its formula and the rows like it, a choice by who makes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.help.words import described_by, print_paragraphs, print_word
from grpo_cli.hyperparameters import HYPERPARAMETERS, Value
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.kl import NO_REFERENCE
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.signature import Part, line
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.grid import column, grid, with_words
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import NAMES, STAGES, VARIANTS, Variant

Entry = Mapping[str, Any]

SYMBOLS: Mapping[str, str] = {
    "advantage": "A",
    "ratio": "ρ",
    "surrogate": "s",
    "kl": "k",
    "correction": "c",
    "aggregate": "w",
    "kl_aggregate": "w′",
    "entropy": "H",
    "entropy_aggregate": "w″",
}
"""The symbol of each stage's result in the formula."""

_MOST_DIFFERENCES = 2


def describe_variant(name: str) -> dict[str, Any]:
    """The page of a variant, made from the tables, so that a new row has one."""
    listed = NAMES[name]
    row = VARIANTS[listed]
    same, near = related(listed)
    return {
        "variant": listed,
        "aliases": list(row.aliases),
        "title": row.title,
        "formula": formula(row),
        "stages": [_describe_stage(stage, bound) for stage, bound in stages(row).items()],
        "hyperparameters": hyperparameters(row),
        **origin(row),
        "same": same,
        "near": near,
    }


def origin(row: Variant) -> dict[str, Any]:
    """Where a row comes from, and how sure that is."""
    return {
        "paper": row.paper or None,
        "version": row.version or None,
        "until": row.until or None,
        "checked": row.checked,
        "note": row.note,
    }


def stages(row: Variant) -> dict[str, Bound]:
    """The bound choices of a row, in the order in which they run."""
    found = {one.name: getattr(row, one.name) for one in fields(row)}
    return {name: bound for name, bound in found.items() if isinstance(bound, Bound)}


def formula(row: Variant | Objective) -> str:
    """J in symbols, without the parts that the row has not."""
    policy = "s" if row.correction.choice.absent else "c·s"
    if row.kl.choice.absent or row.kl.choice is NO_REFERENCE.choice:
        core = f"Σₜ w·{policy}"
    elif row.kl.choice.in_reward:
        core = f"Σₜ w·{policy}, where the rewards are reduced by β·Σₜ k"
    elif row.kl_aggregate is None:
        core = f"Σₜ w·({policy} − β·k)"
    else:
        core = f"Σₜ w·{policy} − β·Σₜ w′·k"
    if row.entropy is not None:
        core += f" + entropy_coef·Σₜ {'w' if row.entropy_aggregate is None else 'w″'}·H"
    return f"J = {core};  loss = −J"


def _describe_stage(stage: str, bound: Bound) -> dict[str, str]:
    """A line of the formula: a stage, its choice as bound, and the choice's description."""
    doc = inspect.getdoc(bound.choice.function) or ""
    _, _, details = doc.partition("\n")
    return {
        "stage": stage,
        "symbol": SYMBOLS.get(stage, ""),
        "question": STAGES[stage].question if stage in STAGES else "",
        "choice": choice_line(bound),
        "summary": summary_of(bound),
        "details": details.strip().replace("``", ""),
    }


def summary_of(bound: Bound) -> str:
    """The first line of its docstring, and the sentences there on values that are set."""
    paragraphs = (inspect.getdoc(bound.choice.function) or "").split("\n\n")[1:2]
    sentences = re.split(r"(?<=\.)\s+", " ".join(paragraphs))
    set_values = {name for name, value in bound.values.items() if value is not None}
    own = [one for one in sentences if {*_CONDITION.findall(one)} & set_values]
    return " ".join(" ".join([bound.choice.summary, *own]).replace("``", "").split())


_CONDITION = re.compile(r"^With ``(\w+)``")


def choice_line(bound: Bound) -> str:
    """A choice with its values, as a signature has it."""
    return line((Part("", bound.name, tuple(bound.values.items())),))


def hyperparameters(row: Variant) -> list[dict[str, Any]]:
    """Each hyperparameter of the row: its value, what it is, and what others call it."""
    found: dict[str, tuple[Value, str]] = {}
    for stage, bound in stages(row).items():
        for name, value in bound.values.items():
            found.setdefault(name, (value, stage))
    return [
        {
            "name": name,
            "value": value,
            "stage": stage,
            "meaning": HYPERPARAMETERS[name].meaning,
            "aliases": list(HYPERPARAMETERS[name].aliases),
        }
        for name, (value, stage) in found.items()
    ]


def related(listed: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The rows with the same choices; and those that differ at one or two stages, with how."""
    choices = stages(VARIANTS[listed])
    same: list[str] = []
    near: list[dict[str, Any]] = []
    for name, row in VARIANTS.items():
        if name == listed:
            continue
        differs = _differences(choices, stages(row))
        if not differs:
            same.append(name)
        elif len(differs) <= _MOST_DIFFERENCES:
            near.append({"variant": name, "version": row.version or None, "differs": differs})
    near.sort(key=lambda entry: len(entry["differs"]))
    return same, near


def _differences(one: Mapping[str, Bound], other: Mapping[str, Bound]) -> dict[str, str]:
    """Stage → the other's choice, where it is another or has other values."""

    def made(bound: Bound | None) -> object:
        return bound and (bound.name, bound.values)

    return {
        stage: choice_line(other[stage]) if stage in other else "none"
        for stage in dict.fromkeys([*one, *other])
        if made(one.get(stage)) != made(other.get(stage))
    }


# ---- the page -----------------------------------------------------------------------------------

_NEAR = 25
_INDENT = 2


def print_variant(console: Console, screen: Screen, page: Entry) -> None:
    """Prints a variant's page: formula, stages, hyperparameters, origin, and what is like it."""
    width = screen.reading
    if "word" in page:
        print_word(console, screen, page["word"])
        console.print()
    names = ", ".join([page["variant"], *page["aliases"]])
    head = Text.assemble((names, "bold cyan"), f": {page['title']}")
    console.print(wrapped(head, width, _INDENT))
    console.print(Text("\n") + wrapped(Text(f"  {page['formula']}\n", "bold"), width, _INDENT * 2))
    for stage in page["stages"]:
        symbol = (f"{stage['symbol']:>3}", "bold")
        console.print(Text.assemble(symbol, f"  {stage['stage']}: ", (stage["choice"], "cyan")))
        console.print(wrapped(Text(f"     {stage['summary']}"), width, 5))
    _print_hyperparameters(console, screen, page["hyperparameters"])
    console.print()
    for name, words in _ORIGIN.items():
        if page[name]:
            text = Text(f"{name:<9}{words.format(_CHECKED.get(page[name], page[name]))}")
            console.print(wrapped(text, width, 9) if name == "note" else text)
    _print_related(console, page, width)


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


_ORIGIN = {
    "paper": "https://arxiv.org/abs/{}",
    "version": "{}",
    "until": "{}; later releases do not have it",
    "checked": "{}",
    "note": "{}",
}
"""What is known of where a row comes from, as it is printed."""

_CHECKED = {
    "paper": "against the paper's formula",
    "read": "by reading the framework's code",
    "golden": "against numbers that the framework's code computed",
    "executed": "by running the framework's code",
}


def _print_related(console: Console, page: Entry, room: int) -> None:
    if page["same"]:
        same = Text(f"the same choices: {', '.join(page['same'])}")
        console.print(Text("\n") + wrapped(same, room, _INDENT))
    if page["near"]:
        console.print(Text("\nsame except", "bold"))
        width = max(len(one["variant"]) for one in page["near"])
        for one in page["near"][:_NEAR]:
            differs = "; ".join(f"{stage} {choice}" for stage, choice in one["differs"].items())
            line = Text.assemble("  ", (f"{one['variant']:{width}}", "cyan"), f"  {differs}")
            console.print(wrapped(line, room, width + 4))
        if len(page["near"]) > _NEAR:
            console.print(Text(f"  … {len(page['near']) - _NEAR} more (see --json)", "dim"))


# ---- a choice at a stage -------------------------------------------------------------------------


def is_choice(name: str) -> bool:
    """Whether a stage has a choice of that name, or under that name of a framework."""
    return bool(_choices_named(name))


def _choices_named(name: str) -> dict[str, str]:
    """Stage → the choice of that name there; one stage's for ``adv:given`` of a signature."""
    key, _, own = name.partition("[")[0].rpartition(":")
    return {
        place: stage.aliases.get(own, own)
        for place, stage in STAGES.items()
        if (own in stage.choices or own in stage.aliases) and key in ("", place, stage.key)
    }


def describe_choice(name: str) -> dict[str, Any]:
    """All that the tables know of the choice, at each stage that has it."""
    return {
        "choices": [
            _describe_choice_at(place, choice) for place, choice in _choices_named(name).items()
        ]
    }


def _describe_choice_at(place: str, name: str) -> dict[str, Any]:
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
            else [n for n in one["variants"] if "/" not in n][:_USERS]
        )
        if rest := len(one["variants"]) - len(named):
            named = [*named, f"{rest} more (--full, which has the references too)"]
        made = ", ".join(named) or "none"
        console.print()
        console.print(wrapped(Text(f"variants that use it: {made}"), width, 2))


_USERS = 8
"""Variants that are listed without ``--full``."""
