"""``grpo formats``: what can be read as it is."""

from __future__ import annotations

from typing import Any

import typer

from grpo_cli.commands.formats.view import print_formats
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.page import PageOptions
from grpo_cli.records.fields import ALIASES
from grpo_cli.records.formats import CANONICAL, FORMATS
from grpo_cli.terminal.messages import failures


@bundled
def list_formats(*, page: PageOptions) -> None:
    """List the formats that are read as they are.

    \b
    grpo formats
    grpo formats --json | jq '.formats[] | select(.name == "nemo-rl").lacks'

    A format is told from the content of each object; --from NAME of the other
    commands insists on one. What a format lacks is said when it is read.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        document: dict[str, Any] = {
            "formats": [_canonical(), *map(_row, FORMATS)],
            "names": {name: list(aliases) for name, aliases in ALIASES.items()},
        }
        page.write(
            document,
            lambda console, screen: print_formats(console, screen, document),
            rows=document["formats"],
        )
    raise typer.Exit


def _canonical() -> dict[str, Any]:
    return {
        "name": CANONICAL,
        "title": "JSON, JSONL, Parquet, Arrow, npz, safetensors under any of the names below",
        "keys": [["log_probs_new"], ["ratios"]],
        "lacks": [],
        "source": "",
    }


def _row(name: str) -> dict[str, Any]:
    one = FORMATS[name]
    return {
        "name": name,
        "title": one.title,
        "keys": [sorted(keys) for keys in one.keys],
        "lacks": list(one.lacks),
        "source": one.source,
    }
