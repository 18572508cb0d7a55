"""``grpo variants``: the objectives that can be named, and the choices they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.explain.names import (
    choice_line,
    describe_variant,
    origin,
    print_variant,
    stages,
)
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import argument, option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.terminal.grid import print_hidden, print_list
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import EARLIER, STAGES, VARIANTS
from grpo_cli.variants.registry import FRAMEWORKS, framework

Pattern = Annotated[
    str | None,
    argument(
        "PATTERN",
        "Only a framework's, or names that match: trl, 'verl/*'.",
        autocompletion=complete.variants,
    ),
]

All = Annotated[bool, option("--all", "", "Also objectives of earlier releases (trl/dapo@1.9).")]
Stage = Annotated[
    str | None,
    option(
        "--stage",
        "STAGE",
        f"Choices of a stage: {', '.join(STAGES)}.",
        autocompletion=complete.among(STAGES),
    ),
]
Changes = Annotated[bool, option("--changes", "", "What changed between frameworks' releases.")]
Hyperparameters = Annotated[
    bool, option("--hyperparameters", "", "The names that -p takes, with their meaning.")
]


def list_variants(
    *,
    pattern: Pattern = None,
    stage: Stage = None,
    every: All = False,
    changes: Changes = False,
    hyperparameters: Hyperparameters = False,
    page: PageOptions,
) -> None:
    """List the objectives, and the choices of each stage.

    \b
    grpo variants trl
    grpo variants 'verl/*clip*'
    grpo variants --stage kl
    grpo variants --changes
    grpo variants --json | jq -r '.variants[].name'

    Flags also accept the names that frameworks give a choice. A name with an @ is a
    framework's objective as an earlier release computed it; --all or a pattern
    with an @ lists these. `grpo explain NAME` explains one.
    """  # noqa: D301 - \b is for the help's formatter
    if changes:
        found = _changes(pattern)
        page.write(
            {"changes": found}, lambda console, screen: print_changes(console, screen, found)
        )
    elif hyperparameters:
        known = [
            {"name": name, "meaning": row.meaning, "aliases": list(row.aliases)}
            for name, row in HYPERPARAMETERS.items()
            if pattern is None or fnmatchcase(name, pattern)
        ]
        shown = [{**row, "meaning": _also(row, "meaning")} for row in known]
        page.write(
            {"hyperparameters": known},
            lambda console, screen: print_list(console, screen, shown, ("name", "meaning")),
            rows=known,
        )
    elif stage is not None:
        chosen = _stages(complete.known("--stage", stage, STAGES), pattern)
        rows = [
            {"choice": name, **about}
            for one in chosen.values()
            for name, about in one["choices"].items()
        ]
        page.write(
            {"stages": chosen},
            lambda console, screen: print_choices(console, screen, chosen),
            rows=rows,
        )
    else:
        variants = _fitting(pattern, every=every)
        every_stage = _stages()
        listed = {} if pattern else every_stage
        page.write(
            {"variants": variants, "stages": every_stage},
            lambda console, screen: print_variants(console, screen, variants, listed),
            rows=[
                ({name: value for name, value in row.items() if name != "stages"} | row["stages"])
                for row in variants
            ],
        )


def _changes(pattern: str | None) -> list[dict[str, Any]]:
    """The changes of rows that match the pattern between releases, framework by framework.

    Raises:
        BadParameter: if none matches.
    """
    found = [
        {
            "framework": name,
            "since": change.since,
            "rows": list(rows),
            "before": [f"{row}@{change.before}" for row in rows],
            "what": change.what,
        }
        for name in FRAMEWORKS
        for change in framework(name).changes
        if (rows := [row for row in change.rows if pattern is None or fnmatchcase(row, pattern)])
    ]
    if not found:
        raise typer.BadParameter(f"no change is known of {pattern!r}; grpo variants --changes")
    return found


def _fitting(pattern: str | None, *, every: bool) -> list[dict[str, Any]]:
    rows = dict(VARIANTS)
    if every or (pattern is not None and "@" in pattern):
        rows |= {name: VARIANTS[name] for name in EARLIER}
    found = [
        {
            "name": name,
            "aliases": list(row.aliases),
            "title": row.title,
            "stages": {stage: choice_line(bound) for stage, bound in stages(row).items()},
            **origin(row),
        }
        for name, row in rows.items()
        if pattern is None or fnmatchcase(name, pattern)
    ]
    if not found and pattern is not None:
        return _named_alike(pattern, every=every)
    return found


def _named_alike(word: str, *, every: bool) -> list[dict[str, Any]]:
    """The variants of a framework, or those with the word in their names.

    Raises:
        UsageError: where there is none.
    """
    listed = _fitting(None, every=every)
    word = word.lower()
    of_framework = [row for row in listed if row["name"].startswith(f"{word}/")]
    names = ((row, (row["name"], *row["aliases"])) for row in listed if len(word) >= _WORD)
    alike = [row for row, known in names if any(word in one for one in known)]
    if not of_framework and not alike:
        known = (one for row in listed for one in (row["name"], *row["aliases"]))
        hint = did_you_mean(word, known, cutoff=0.7)
        raise UsageError(f"no variant fits {word!r}{hint} (grpo variants lists them)")
    return of_framework or alike


_WORD = 3
"""Letters of the shortest word that is looked for within names."""


def _stages(only: str | None = None, pattern: str | None = None) -> dict[str, Any]:
    found = {
        name: {
            "question": stage.question,
            "choices": {
                choice: {
                    "summary": one.summary,
                    "aliases": [alias for alias, of in stage.aliases.items() if of == choice],
                    "hyperparameters": list(one.hyperparameters),
                }
                for choice, one in stage.choices.items()
                if pattern is None or fnmatchcase(choice, pattern)
            },
        }
        for name, stage in STAGES.items()
        if only in (None, name)
    }
    if only is not None and not found[only]["choices"]:
        raise UsageError(f"no choice of --stage {only} fits {pattern!r}")
    return found


# ---- tables --------------------------------------------------------------------------------------


Entry = Mapping[str, Any]

_STAGES = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")

_SPARE: Sequence[str] = (
    *("hyperparameters", "version", "checked", "correction", "kl", "ratio", "paper"),
    *("advantage", "aggregate", "surrogate"),
)
"""Columns that a narrow terminal leaves out, the first to go first."""


def print_variants(
    console: Console, screen: Screen, variants: Sequence[Entry], stages: Mapping[str, Entry]
) -> None:
    """Prints a line per variant, the papers', then each framework's, then stages' choices.

    Of a single variant it prints the page.
    """
    if len(variants) == 1:
        print_variant(console, screen, describe_variant(variants[0]["name"]))
        return
    rows = [{**row, **_stage_names(row), "title": _also(row, "title")} for row in variants]
    names = ("name", "paper", "version", "checked", *_STAGES, "title")
    hidden: dict[str, None] = {}
    for at, (_, several) in enumerate(groupby(rows, lambda row: row["name"].rpartition("/")[0])):
        console.print("\n" * bool(at), end="")
        hidden |= dict.fromkeys(print_list(console, screen, [*several], names, _SPARE))
    print_hidden(
        console, screen, [*hidden, "hyperparameters", "note"], "see grpo explain NAME, --json"
    )
    if stages:
        console.print()
        print_choices(console, screen, stages)


def _stage_names(variant: Entry) -> dict[str, str]:
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
    print_hidden(console, screen, hidden, "see --json")


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
