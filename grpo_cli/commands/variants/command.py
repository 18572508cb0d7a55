"""``grpo variants``: the objectives that can be named, and the choices they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from grpo_cli.commands.eval.printing import Json
from grpo_cli.commands.options import complete
from grpo_cli.commands.variants.changes import changed
from grpo_cli.commands.variants.view import print_changes, print_choices, print_variants
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.signature import Part, line
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.screen import Screen, screen_of, written
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
Changes = Annotated[
    bool,
    typer.Option("--changes", help="What frameworks changed between their releases."),
]


def list_variants(
    *, pattern: Pattern = None, every: All = False, changes: Changes = False, json: Json = False
) -> None:
    """List the variants and their stages.

    \b
    grpo variants 'trl/*'
    grpo variants --changes
    grpo variants --json | jq -r '.variants[].name'

    Second come the choices at each stage, with the frameworks' names for them,
    which the flags of the other commands accept as well. A name with an @ is a
    framework's row as a release before computed it; --all or a pattern with an
    @ lists them.
    """  # noqa: D301 - \b is for the help's formatter
    if changes:
        _answer({"changes": changed(pattern)}, print_changes, json=json)
        return
    document = {"variants": _fitting(pattern, every=every), "stages": _stages()}
    _answer(document, lambda *where: _print_rows(*where, whole=pattern is None), json=json)


Printer = Callable[[Console, Screen, dict[str, Any]], None]


def _answer(document: dict[str, Any], printed: Printer, *, json: bool) -> None:
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    with destination(None) as stream:
        screen = screen_of(stream)
        console = screen.console()
        printed(console, screen, document)
        stream.write(written(console).encode())


def _print_rows(console: Console, screen: Screen, document: dict[str, Any], *, whole: bool) -> None:
    print_variants(console, screen, document["variants"])
    if whole:
        print_choices(console, screen, document["stages"])


def _fitting(pattern: str | None, *, every: bool) -> list[dict[str, Any]]:
    rows = dict(VARIANTS)
    if every or (pattern is not None and "@" in pattern):
        rows |= {name: VARIANTS[name] for name in EARLIER}
    found = [row for row in _variants(rows) if pattern is None or fnmatchcase(row["name"], pattern)]
    if not found:
        raise typer.BadParameter(f"no variant fits {pattern!r}; grpo variants lists them")
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
