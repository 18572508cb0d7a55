"""``grpo formats``: what can be read as it is."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.options.option import argument
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.records.fields import ALIASES
from grpo_cli.records.formats import CANONICAL, FORMATS
from grpo_cli.terminal.grid import print_list
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

_CANONICAL = {
    "name": CANONICAL,
    "title": "JSON, JSONL, Parquet, Arrow, npz under any of the names below",
    "keys": [["log_probs_new"], ["ratios"]],
    "lacks": [],
    "source": "",
}


Pattern = Annotated[
    str | None,
    argument("NAME", "Only formats and fields of this name, e.g. verl or log_probs_old."),
]


def list_formats(*, name: Pattern = None, page: PageOptions) -> None:
    """List the formats that can be read, and the names of fields.

    \b
    grpo formats
    grpo formats verl
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
    if name is not None:
        document = _fitting(name, document)
    page.write(
        document,
        lambda console, screen: print_formats(console, screen, document),
        rows=document["formats"],
    )


def _fitting(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The formats that have the name in theirs or in their title, and the fields called so.

    Raises:
        UsageError: where nothing has.
    """
    part = f"*{name.lower()}*"
    formats = [
        one
        for one in document["formats"]
        if any(fnmatchcase(text.lower(), part) for text in (one["name"], one["title"]))
    ]
    names = {
        field: aliases
        for field, aliases in document["names"].items()
        if any(fnmatchcase(text.lower(), part) for text in (field, *aliases))
    }
    if not formats and not names:
        fields = (one for field, aliases in document["names"].items() for one in (field, *aliases))
        hint = did_you_mean(name, [*FORMATS, *fields])
        raise UsageError(f"no format or field is called {name!r}{hint} (grpo formats lists them)")
    return {"formats": formats, "names": names}


def print_formats(console: Console, screen: Screen, document: Mapping[str, Any]) -> None:
    """Prints each format with what it lacks, then every name of each field."""
    formats = [
        {"format": one["name"], "what it reads": "\n· ".join([one["title"], *one["lacks"]])}
        for one in document["formats"]
    ]
    fields = [{"field": name, "other names": names} for name, names in document["names"].items()]
    if formats:
        print_list(console, screen, formats, ("format", "what it reads"))
    if formats and fields:
        console.print()
    if fields:
        print_list(console, screen, fields, ("field", "other names"))
    if all(one["name"] != CANONICAL for one in document["formats"]):
        text = "files of your own are read too: grpo formats lists the names that a field may have"
        console.print(wrapped(Text(f"\n{text}"), screen.reading))
