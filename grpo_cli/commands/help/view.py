"""A page of help: laid out on a terminal, as it was written in a pipe."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen, written

_WIDEST = 100
_PARTS = re.compile(
    r"^```\w*\n(?P<example>[\s\S]*?)^```$|^#+ (?P<heading>.*)$|(?P<prose>(?:^(?!```|#+ ).*\n)+)",
    re.MULTILINE,
)
_LINK = re.compile(r"\[([^\]]+)\]\((\w+)\.md\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def laid_out(screen: Screen, page: str) -> str:
    """A page for a terminal, whose examples keep their lines; in a pipe it is as it was written."""
    if not (screen.terminal or screen.color):
        return page
    console = screen.console()
    for part in _parts(_LINK.sub(r"\1 (`grpo help \2`)", _COMMENT.sub("", page))):
        if part["heading"]:
            console.print(Text(part["heading"], "bold"))
            console.print()
        elif part["example"]:
            console.print(_example(part["example"]))
        elif part["prose"].strip():
            _print_prose(console, part["prose"], min(screen.width or _WIDEST, _WIDEST))
    return written(console)


def _parts(page: str) -> list[dict[str, str]]:
    return [found.groupdict(default="") for found in _PARTS.finditer(page)]


def _print_prose(console: Console, prose: str, width: int) -> None:
    from rich.markdown import Markdown  # imported here: most runs print no page
    from rich.theme import Theme

    with console.use_theme(Theme({"markdown.code": "cyan"})):
        console.print(Markdown(prose), width=width)
    console.print()


def _example(code: str) -> Padding:
    lines = [
        Text(line, "bold" if line.startswith("$ ") else "") for line in code.rstrip().split("\n")
    ]
    return Padding(Text("\n").join(lines), (0, 0, 1, 2))


def print_contents(
    console: Console, screen: Screen, commands: Mapping[str, str], topics: Mapping[str, str]
) -> None:
    """Prints what there is help on."""
    room = max(map(len, [*commands, *topics])) + 2
    for title, rows in (("commands", commands), ("pages", topics)):
        console.print(Text(title, "bold"))
        for name, about in rows.items():
            line = Text.assemble("  ", (f"{name:<{room}}", "cyan"), about)
            console.print(wrapped(line, screen.width, room + 2))
        console.print()
    console.print(Text("grpo help NAME shows one"))
