"""``grpo variants``: the objectives that can be named, and the choices they are made of."""

from __future__ import annotations

import sys
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Annotated, Any

import orjson
import typer

from grpo_cli.commands.eval.printing import Json
from grpo_cli.commands.options import complete
from grpo_cli.commands.variants.view import print_choices, print_variants
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.signature import Part, line
from grpo_cli.terminal.screen import screen_of, written
from grpo_cli.variants import STAGES, VARIANTS, Variant

Pattern = Annotated[
    str | None,
    typer.Argument(
        metavar="PATTERN",
        help="Only the variants whose names fit, as 'trl/*'.",
        autocompletion=complete.variants,
        show_default=False,
    ),
]


def list_variants(*, pattern: Pattern = None, json: Json = False) -> None:
    """List the variants and their stages.

    \b
    grpo variants 'trl/*'
    grpo variants --json | jq -r '.variants[].name'

    Second come the choices at each stage, with the frameworks' names for them,
    which the flags of the other commands accept as well.
    """  # noqa: D301 - \b is for the help's formatter
    document: dict[str, Any] = {"variants": _fitting(pattern), "stages": _stages()}
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    stream = sys.stdout.buffer
    screen = screen_of(stream)
    console = screen.console()
    print_variants(console, screen, document["variants"])
    if pattern is None:
        print_choices(console, screen, document["stages"])
    stream.write(written(console).encode())


def _fitting(pattern: str | None) -> list[dict[str, Any]]:
    found = [row for row in _variants() if pattern is None or fnmatchcase(row["name"], pattern)]
    if not found:
        raise typer.BadParameter(f"no variant fits {pattern!r}; grpo variants lists them")
    return found


def _variants() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "aliases": list(row.aliases),
            "title": row.title,
            "stages": _bound(row),
            "paper": row.paper or None,
            "version": row.version or None,
            "checked": row.checked,
            "note": row.note,
        }
        for name, row in VARIANTS.items()
    ]


def _bound(row: Variant) -> dict[str, str]:
    """The row's stages as they stand in a signature."""
    found = {one.name: getattr(row, one.name) for one in fields(row)}
    return {
        name: line((Part("", bound.name, tuple(bound.values.items())),))
        for name, bound in found.items()
        if isinstance(bound, Bound)
    }


def _stages() -> dict[str, Any]:
    return {
        name: {
            "question": stage.question,
            "choices": {
                choice: {
                    "summary": one.summary,
                    "aliases": [alias for alias, of in stage.aliases.items() if of == choice],
                    "hyperparameters": list(one.hyperparameters),
                }
                for choice, one in stage.choices.items()
            },
        }
        for name, stage in STAGES.items()
    }
