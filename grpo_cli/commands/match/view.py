"""What reproduces a logged number, as a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.numbers import shown, visible
from grpo_cli.terminal.screen import Screen

Found = Mapping[str, Any]


def print_matches(console: Console, screen: Screen, document: Found) -> None:
    """Prints the answer, then each convention: its value, who does it, and how to evaluate it."""
    del screen
    target = f"{document['target_of']} {document['target']!r}"
    tried = f"{document['tried']:,} conventions tried, rtol {document['rtol']:g}"
    if not document["matches"]:
        console.print(Text(f"nothing reproduces the {target} ({tried})", "bold yellow"))
        for line in _rounded(document["target"]):
            console.print(Text(line, "yellow"))
        console.print(Text("\nthe nearest", "bold"))
        for found in document["nearest"]:
            _print(console, found)
        return
    count = document["match_count"]
    if document["ambiguous"]:
        head = f"ambiguous: {count} conventions give the {target} ({tried})"
        console.print(Text(head, "bold yellow"))
        for line in _remedy(document):
            console.print(Text(line, "yellow"))
    else:
        console.print(Text(f"one convention gives the {target} ({tried})", "bold green"))
    for found in document["matches"]:
        _print(console, found)


def _rounded(target: float) -> list[str]:
    """A remark on a number that has few digits; its last one is half a unit off at most."""
    text = f"{abs(target):e}"
    mantissa = float(text[: text.index("e")])
    digits = len(repr(mantissa).replace(".", "").rstrip("0"))
    if digits > _FEW or not target:
        return []
    rtol = 0.5 * 10.0 ** (1 - digits) / mantissa
    count = "1 digit" if digits == 1 else f"{digits} digits"
    return [f"the number has {count}; if it was rounded, try --rtol {rtol:.2g}"]


_FEW = 5


def _remedy(document: Found) -> list[str]:
    if not document["tell_apart"]:
        return ["they agree within the tolerance only: give more digits, or a smaller --rtol"]
    return ["to tell them apart, data with", *(f"  {one}" for one in document["tell_apart"])]


def _print(console: Console, found: Found) -> None:
    value, off = found["value"], found["difference"]
    head = Text.assemble("\n", (f"{value!r}", "bold"), f"  off by {off:.3g}")
    if found["variants"]:
        head.append(f"  {', '.join(found['variants'])}", "cyan")
    if found["sign_flipped"]:
        head.append("  sign flipped", "magenta")
    if found["factor"] != 1.0:
        head.append(f"  {_factor(found['factor'])}", "magenta")
    console.print(head)
    console.print(Text(f"  {visible(found['signature'])}"))
    console.print(Text(f"  {found['command']}", "dim"))


def _factor(times: float) -> str:
    return f"× {shown(times)}" if times >= 1.0 else f"÷ {shown(1.0 / times)}"
