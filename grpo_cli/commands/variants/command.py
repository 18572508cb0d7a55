"""``grpo variants``: the objectives that can be named, and the choices they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.variants.changes import changed
from grpo_cli.commands.variants.view import (
    print_all,
    print_changes,
    print_choices,
    print_hyperparameters,
)
from grpo_cli.errors import UsageError
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.signature import Part, line
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import EARLIER, STAGES, VARIANTS, Variant

Pattern = Annotated[
    str | None,
    typer.Argument(
        metavar="PATTERN",
        help="Only the variants whose names fit, as 'trl/*'.",
        autocompletion=complete.variants,
        show_default=False,
    ),
]

All = Annotated[
    bool,
    typer.Option("--all", help="Also those of earlier releases, as trl/dapo@1.9."),
]
Stage = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="STAGE",
        help=f"Only the choices at this stage: {', '.join(STAGES)}.",
        autocompletion=complete.among(STAGES),
        show_default=False,
    ),
]
Changes = Annotated[
    bool,
    typer.Option("--changes", help="What frameworks changed between their releases."),
]

Hyperparameters = Annotated[
    bool,
    typer.Option("--hyperparameters", help="The names that -p takes, and what they mean."),
]


@bundled
def list_variants(
    *,
    pattern: Pattern = None,
    stage: Stage = None,
    every: All = False,
    changes: Changes = False,
    hyperparameters: Hyperparameters = False,
    page: PageOptions,
) -> None:
    """List the variants, and the choices at each stage.

    \b
    grpo variants 'trl/*'
    grpo variants --stage kl
    grpo variants --changes
    grpo variants --json | jq -r '.variants[].name'

    The flags of the other commands accept the frameworks' names for a choice
    too. A name with an @ is a framework's row as a release before computed it;
    --all or a pattern with an @ lists them. grpo explain NAME says more of a
    variant or of a choice.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        if changes:
            document = {"changes": changed(pattern)}
            page.write(document, partial(_draw, print_changes, document))
        elif hyperparameters:
            taken = _taken(pattern)
            draw = partial(_draw, print_hyperparameters, taken)
            page.write({"hyperparameters": taken}, draw, rows=taken)
        elif stage is not None:
            chosen = _stages(complete.known("--stage", stage, STAGES), pattern)
            rows = [row for one in chosen.values() for row in _choices(one)]
            draw = partial(_draw, print_choices, chosen)
            page.write({"stages": chosen}, draw, rows=rows)
        else:
            variants = _fitting(pattern, every=every)
            stages = _stages()
            shown = {} if pattern else stages
            page.write(
                {"variants": variants, "stages": stages},
                lambda console, screen: print_all(console, screen, variants, shown),
                rows=[_flat(row) for row in variants],
            )


def _taken(pattern: str | None) -> list[dict[str, Any]]:
    rows = HYPERPARAMETERS.items()
    return [
        {"name": name, "meaning": row.meaning, "aliases": list(row.aliases)}
        for name, row in rows
        if pattern is None or fnmatchcase(name, pattern)
    ]


def _draw(drawn: Callable[..., None], document: Any, console: Console, screen: Screen) -> None:
    drawn(console, screen, document)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "stages"} | row["stages"]


def _fitting(pattern: str | None, *, every: bool) -> list[dict[str, Any]]:
    rows = dict(VARIANTS)
    if every or (pattern is not None and "@" in pattern):
        rows |= {name: VARIANTS[name] for name in EARLIER}
    found = [row for row in _variants(rows) if pattern is None or fnmatchcase(row["name"], pattern)]
    if not found:
        raise UsageError(f"no variant fits {pattern!r}; grpo variants lists them")
    return found


def _variants(rows: Mapping[str, Variant]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "aliases": list(row.aliases),
            "title": row.title,
            "stages": _bound(row),
            "paper": row.paper or None,
            "version": row.version or None,
            "until": row.until or None,
            "checked": row.checked,
            "note": row.note,
        }
        for name, row in rows.items()
    ]


def _bound(row: Variant) -> dict[str, str]:
    """The row's stages as they stand in a signature."""
    found = {one.name: getattr(row, one.name) for one in fields(row)}
    return {
        name: line((Part("", bound.name, tuple(bound.values.items())),))
        for name, bound in found.items()
        if isinstance(bound, Bound)
    }


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


def _choices(stage: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"choice": name, **about} for name, about in stage["choices"].items()]
