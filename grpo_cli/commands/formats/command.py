"""``grpo formats``: what can be read as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.records.fields import ALIASES
from grpo_cli.records.formats import CANONICAL, FORMATS
from grpo_cli.terminal.grid import print_list
from grpo_cli.terminal.screen import Screen

_CANONICAL = {
    "name": CANONICAL,
    "title": "JSON, JSONL, Parquet, Arrow, npz, safetensors under any of the names below",
    "keys": [["log_probs_new"], ["ratios"]],
    "lacks": [],
    "source": "",
}


@bundled
def list_formats(*, page: PageOptions) -> None:
    """List the formats that can be read.

    \b
    grpo formats
    grpo formats --json | jq '.formats[] | select(.name == "nemo-rl").lacks'

    The format of each object is detected from its content; other commands take
    --from NAME to force one. Reading prints a note on what the format lacks.
    """  # noqa: D301 - \b is for the help's formatter
    document: dict[str, Any] = {
        "formats": [
            _CANONICAL,
            *(
                {
                    "name": name,
                    "title": one.title,
                    "keys": [sorted(keys) for keys in one.keys],
                    "lacks": list(one.lacks),
                    "source": one.source,
                }
                for name, one in FORMATS.items()
            ),
        ],
        "names": {name: list(aliases) for name, aliases in ALIASES.items()},
    }
    page.write(
        document,
        lambda console, screen: print_formats(console, screen, document),
        rows=document["formats"],
    )


def print_formats(console: Console, screen: Screen, document: Mapping[str, Any]) -> None:
    """Prints each format with what it lacks, then every name of each field."""
    formats = [
        {"format": one["name"], "what it reads": "\n· ".join([one["title"], *one["lacks"]])}
        for one in document["formats"]
    ]
    print_list(console, screen, formats, ("format", "what it reads"))
    console.print()
    fields = [{"field": name, "other names": names} for name, names in document["names"].items()]
    print_list(console, screen, fields, ("field", "other names"))
