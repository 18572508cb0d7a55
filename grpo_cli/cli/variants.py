"""``grpo variants``: the objectives that can be named, and the choices they are made of."""

from __future__ import annotations

from typing import Any

import orjson
import typer

from grpo_cli.cli.printing import Json
from grpo_cli.objective.objective import STAGES
from grpo_cli.variants import VARIANTS


def list_variants(*, json: Json = False) -> None:
    """List the variants, and the choices at each stage with the frameworks' names for them.

    \b
    grpo variants
    grpo variants --json | jq -r '.variants[].name'
    """  # noqa: D301 - \b is for the help's formatter
    document = {"variants": _variants(), "stages": _stages()}
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return


def _variants() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "aliases": list(row.aliases),
            "title": row.title,
            "stages": {stage: repr(getattr(row, stage)) for stage in STAGES},
            "paper": row.paper or None,
            "version": row.version or None,
            "checked": row.checked,
            "note": row.note,
        }
        for name, row in VARIANTS.items()
    ]


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
