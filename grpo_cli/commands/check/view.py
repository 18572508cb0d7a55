"""Findings, as ``grpo check`` prints them: by severity, then by kind, with what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.numbers import shown, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

Row = Mapping[str, Any]

_STYLES = {"error": "bold red", "warning": "bold magenta", "info": "bold cyan"}


def print_findings(console: Console, screen: Screen, document: Row) -> None:
    """Prints the findings kind by kind, the worst first, then how many there are."""
    rows = document["findings"]
    for severity in _STYLES:
        for code in dict.fromkeys(row["code"] for row in rows if row["severity"] == severity):
            of_kind = [row for row in rows if (row["code"], row["severity"]) == (code, severity)]
            _print_kind(console, screen.reading, of_kind, document["more"].get(code, 0))
    for row in document["denominators"]:
        console.print(wrapped(Text(_denominator(row)), screen.reading, 2))
    if document["not_checked"]:
        said = Text(_not_checked(document["not_checked"], document["records"]), "dim")
        console.print(wrapped(said, screen.reading, 2))
    console.print(_conclusion(document))


def print_codes(console: Console, screen: Screen, rows: Sequence[Row]) -> None:
    """Prints each code with its severity and meaning."""
    width = max(len(row["code"]) for row in rows)
    for row in rows:
        severity = row["severity"][0]
        line = Text.assemble(
            (f"{severity:<8}", _STYLES[severity]),
            (f"{row['code']:<{width}}  ", "bold"),
            row["meaning"],
        )
        console.print(wrapped(line, screen.reading, 8 + width + 2))


def _print_kind(console: Console, width: int, rows: Sequence[Row], more: int) -> None:
    first = rows[0]
    console.print(
        Text.assemble((first["severity"], _STYLES[first["severity"]]), " ", (first["code"], "bold"))
    )
    for row in rows:
        found = Text.assemble("  ", (_place(row), "cyan"), f": {visible(row['message'])}")
        console.print(wrapped(found, width, 4))
    if more:
        console.print(Text(f"  … {more:,} more {first['code']} (--limit 0 for all)", "dim"))
    for advice in dict.fromkeys(row["advice"] for row in rows):
        console.print(wrapped(Text(f"  → {advice}", "dim"), width, 4))
    console.print()


def _denominator(row: Row) -> str:
    """Whether what teaches nothing counts where the loss is divided."""
    told: dict[str, list[str]] = {}
    for kind, name in (("empty_responses", "empty response"), ("dead_groups", "dead group")):
        count = row[kind]
        if count:
            verb = "count in it" if row[f"{kind}_count"] else "do not count"
            told.setdefault(verb, []).append(f"{count:,} {name}{'' if count == 1 else 's'}")
    said = ", ".join(f"{' and '.join(names)} {verb}" for verb, names in told.items())
    return f"denominator of {row['variant']} ({row['denominator']}): {said}"


def _not_checked(lacks: Sequence[Row], records: int) -> str:
    """What was not looked at and for want of what, that of all records first."""
    told: dict[int, dict[str, list[str]]] = {}
    for lack in sorted(lacks, key=lambda one: -int(one["records"])):
        without = _names(lack["missing"])
        about = lack["about"] + (f" other than {lack['partly']}" if lack["partly"] else "")
        told.setdefault(lack["records"], {}).setdefault(without, []).append(about)
    parts = []
    for count, reasons in told.items():
        where = "" if records == 1 else f"in {'all ' if count == records else f'{count:,} of '}"
        whole = f"{where}{records:,} records: " if where else ""
        listed = [f"{', '.join(abouts)} (no {without})" for without, abouts in reasons.items()]
        parts.append(f"{whole}{', '.join(listed)}")
    return f"not looked at{':' if records == 1 else ''} {'; '.join(parts)}"


def _names(missing: Sequence[Sequence[str]]) -> str:
    """What is missing in words; of many names for one thing the first two."""
    return ", no ".join(" or ".join(names if len(names) < 4 else names[:2]) for names in missing)


def _place(row: Row) -> str:
    line = "" if row["line"] is None else f":{row['line']}"
    parts = [f"{visible(row['source'])}{line}", f"record {shown(row['record'])}"]
    parts += [f"{name} {row[name]}" for name in ("response", "token") if row[name] is not None]
    return ", ".join(parts)


def _conclusion(document: Row) -> Text:
    counts = [
        f"{count:,} {name if name == 'info' or count == 1 else name + 's'}"
        for name, count in document["severities"].items()
        if count
    ]
    looked = ", ".join(
        f"{document[name]:,} {name.removesuffix('s') if document[name] == 1 else name}"
        for name in ("records", "responses", "tokens")
    )
    style = "bold green" if document["ok"] else "bold red"
    return Text.assemble((", ".join(counts) or "nothing found", style), f" in {looked}")
