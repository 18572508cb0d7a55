"""The pages of ``grpo help``, Markdown files: laid out on a terminal, in a pipe as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grpo_cli.terminal.grid import print_list
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen, written

PAGES = Path(__file__).parent / "pages"


def topics() -> Mapping[str, str]:
    """Topic → the first line of its page, which says what is in it."""
    first = {path.stem: text(path.stem).partition("\n")[0] for path in sorted(PAGES.glob("*.md"))}
    return {topic: line.lstrip("# ").rstrip() for topic, line in first.items()}


def text(topic: str) -> str:
    """The page as it was written."""
    return (PAGES / f"{topic}.md").read_text(encoding="utf-8")


def flag_pages() -> Mapping[str, str]:
    """Flag → when to use it, an example that runs, what goes wrong, and what is related."""
    page = (PAGES.parent / "flags.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (--[\w-]+)$", page, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def print_flag_page(console: Console, screen: Screen, page: str) -> None:
    """Prints one of the pages of flags; an example keeps its line."""
    for block in page.split("\n\n"):
        console.print()
        if block.startswith("    "):
            line = f"  $ {block.strip()}"
            console.print(Text(as_command(line, screen.width).plain, "bold"))
            continue
        for item in re.split(r"\n(?=- )", block):
            words = " ".join(item.split()).replace("`", "")
            console.print(wrapped(Text(words), screen.reading, 2 * words.startswith("- ")))


_INDENT = 2
_PARTS = re.compile(
    r"^```\w*\n(?P<example>[\s\S]*?)^```$|^#+ (?P<heading>.*)$|(?P<prose>(?:^(?!```|#+ ).*\n)+)",
    re.MULTILINE,
)
_LINK = re.compile(r"\[([^\]]+)\]\((\w+)\.md\)")
_OTHER_LINK = re.compile(r"\[([^\]]+)\]\((\.\./)+[^)]*\)")
_TABLE = re.compile(r"^\|.*\|\n\|[-:| ]+\|\n(?:\|.*\n?)+", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def laid_out(screen: Screen, page: str) -> str:
    """A page for a terminal, whose examples keep their lines; in a pipe it is Markdown."""
    page = _LINK.sub(r"\1 (`grpo help \2`)", _COMMENT.sub("", page))
    page = _OTHER_LINK.sub(r"\1", page)  # to a file that is not installed
    if not (screen.terminal or screen.color):
        return page
    console = screen.console()
    for found in _PARTS.finditer(page):
        part = found.groupdict(default="")
        if part["heading"]:
            console.print(wrapped(Text(part["heading"], "bold"), screen.width, _INDENT))
            console.print()
        elif part["example"]:
            room = screen.width and screen.width - _INDENT
            lines = [_line(line, room) for line in part["example"].rstrip().split("\n")]
            console.print(Padding(Text("\n").join(lines), (0, 0, 1, _INDENT)))
        elif part["prose"].strip():
            from rich.markdown import Markdown  # imported here: most runs print no page
            from rich.theme import Theme

            with console.use_theme(Theme({"markdown.code": "cyan"})):
                prose = _TABLE.sub(lambda table: _fitting(table[0], screen), part["prose"])
                console.print(Markdown(prose), width=screen.reading)
            console.print()
    return written(console)


def _fitting(table: str, screen: Screen) -> str:
    """A Markdown table; or a list of its rows, where a word would be cut."""
    from rich.markdown import Markdown

    console = screen.console()
    console.print(Markdown(table), width=screen.reading)
    lines = table.rstrip().split("\n")
    names, _, *rows = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in lines]
    if written(console).count("…") == table.count("…"):
        return table
    listed = ""
    for first, *rest in rows:
        cells = [(name, cell) for name, cell in zip(names[1:], rest, strict=True) if cell]
        if len(names) > _MANY:
            listed += f"- {first}: {', '.join(f'{name} {cell}' for name, cell in cells)}\n"
        else:
            listed += f"- {first}\n" + "".join(f"  - {name}: {cell}\n" for name, cell in cells)
    return listed


_MANY = 5
"""Columns of a table, beyond which its cells are short numbers."""


def _line(line: str, width: int | None) -> Text:
    """A line of an example; where it has no room it goes on below, whole words indented."""
    if line.startswith("$ "):
        return Text(as_command(line, width).plain, "bold")
    if line.startswith("─"):
        return Text(line[:width])
    return wrapped(Text(line), width, len(line) - len(line.lstrip()) + _INDENT, bars=True)


def print_contents(
    console: Console, screen: Screen, commands: Mapping[str, str], topics: Mapping[str, str]
) -> None:
    """Prints what there is help on."""
    for name, about in (("command", commands), ("page", topics)):
        rows = [{name: one, "about": text} for one, text in about.items()]
        print_list(console, screen, rows, (name, "about"))
        console.print()
    text = "grpo help NAME shows one, or a flag (group-by), a word (drift), a variant (dapo)"
    console.print(wrapped(Text(text), screen.reading, 2))
