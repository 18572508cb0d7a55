"""``grpo help``: the longer pages, and the flags of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import typer
import typer.main
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grpo_cli.commands import main
from grpo_cli.commands.help.words import (
    PAGES,
    Word,
    look_up,
    names_of_words,
    print_word,
    text,
    topics,
)
from grpo_cli.commands.options.option import argument
from grpo_cli.errors import UsageError, nearest
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.grid import print_list
from grpo_cli.terminal.paging import print_page
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen, written

Topic = Annotated[
    list[str] | None,
    argument(
        "TOPIC|COMMAND|FLAG",
        "A page, a command, a word or a flag; default: a list.",
        autocompletion=lambda incomplete: [n for n in _names() if n.startswith(incomplete)],
    ),
]


def show_help(*, topic: Topic = None) -> None:
    """Show a page of help, the options of a command, or what a word means.

    \b
    grpo help
    grpo help eval
    grpo help input
    grpo help dapo
    grpo help reward hacking
    grpo help --group-by

    Prints a formatted page on a terminal, and its Markdown into a pipe.
    """  # noqa: D301 - \b is for the help's formatter
    words = " ".join(topic or ())
    name = words if words.startswith("-") else words.lower() or None
    if name is None or name in topics():
        _print(lambda console, screen: _page(console, screen, name))
    elif name not in main.COMMANDS:
        stage = _stage_of(name)
        found = look_up_flag(stage or name)
        if (stage or f"--{name}" in flag_pages()) and (word := look_up(name)):
            _print(lambda console, screen: _both(console, screen, word, found))
        elif _is_explained(name):
            main.application("explain")(["explain", name], prog_name="grpo")
        elif found:
            _print(lambda console, screen: print_flag(console, screen, found))
        elif answer := " " in name and question_like(name):
            _print(lambda console, screen: console.file.write(f"{laid_out(screen, answer)}"))
        else:
            raise _unknown(name)
    if name in main.COMMANDS:
        main.application(name)([name, "--help"], prog_name="grpo")


def _page(console: Console, screen: Screen, topic: str | None) -> None:
    if topic is None:
        print_contents(console, screen, main.described(), topics())
    else:
        console.file.write(f"{laid_out(screen, text(topic)).rstrip()}\n")


def _both(console: Console, screen: Screen, word: Word, found: Sequence[Flag]) -> None:
    """A word that is a flag's name too."""
    print_word(console, screen, word.fields())
    console.print()
    print_flag(console, screen, found)


def _print(draw: Callable[[Console, Screen], object]) -> None:
    with destination(None) as stream:
        print_page(stream, draw, "page")


def _unknown(name: str) -> UsageError:
    from grpo_cli.variants import NAMES, STAGES

    choices = [choice for stage in STAGES.values() for choice in stage.choices]
    words = names_of_words()
    near = nearest(name, [*_names(), *NAMES, *words, *choices, *flags()], cutoff=0.7)
    shared = [one for one in name.split() if one in words]  # of a question in several words
    near = near or " or ".join(dict.fromkeys(shared))
    hint = f"; did you mean {near}?" if near else ""
    return UsageError(f"no help on {name!r}{hint} (grpo help lists commands and pages)")


def question_like(words: str) -> str | None:
    """The part of the page of questions that shares most with a question in other words.

    A word counts 1 ÷ (questions that have it); what shares less than half such a word is none.
    """
    _, *parts = re.split(r"^(?=\*\*)", text("questions"), flags=re.MULTILINE)
    questions = [_content_words(part.split("**")[1]) for part in parts]
    asked = _content_words(words)
    weights = {word: 1 / max(1, sum(word in one for one in questions)) for word in asked}
    shares = [sum(weights[word] for word in asked & one) for one in questions]
    best = max(range(len(parts)), key=shares.__getitem__)
    return parts[best].rstrip() + "\n" if shares[best] >= _SHARED else None


_SHARED = 0.5


def _content_words(sentence: str) -> set[str]:
    """Its words in the singular, without those that any question may have."""
    words = _COMMON_WORDS.sub("", sentence.lower().replace("zero", "0"))
    return {re.sub(r"(?<=[cs]h)es$|s$", "", word) for word in re.findall(r"[^\W_]+", words)}


_COMMON_WORDS = re.compile(
    r"\b(an?|and|are|can|did|do|does|for|how|i|in|is|its?|my|of|the|to|what|why)\b"
)


def _is_explained(name: str) -> bool:
    """Whether ``grpo explain`` knows a variant, a choice or a word of that name."""
    from grpo_cli.commands.explain.names import is_choice  # numpy comes with them
    from grpo_cli.variants import NAMES

    return name.lower() in NAMES or is_choice(name.lower()) or look_up(name) is not None


def _stage_of(name: str) -> str | None:
    """The stage of that name, or of that key in a signature."""
    from grpo_cli.variants import STAGES  # numpy comes with them

    return next((stage for stage, one in STAGES.items() if name in (stage, one.key)), None)


def _names() -> list[str]:
    return [*dict.fromkeys([*topics(), *main.COMMANDS])]


# ---- flags ---------------------------------------------------------------------------------------


class Flag(NamedTuple):
    """A flag as some commands have it.

    Attributes:
        spelling: its names and what its value is called.
        text: what it does.
        commands: those that have it with this text.
    """

    spelling: str
    text: str
    commands: list[str]


def look_up_flag(name: str) -> list[Flag]:
    """The flag of that name, with or without its dashes; one for each text that it has."""
    spelled = name if name.startswith("-") else f"--{name.lower().replace('_', '-')}"
    found: dict[tuple[str, str], Flag] = {}
    for command, names, metavar, about in _options():
        if spelled in names:
            spelling = f"{', '.join(names)} {metavar}".rstrip()
            flag = found.setdefault((spelling, about), Flag(spelling, about, []))
            flag.commands.append(command)
    return list(found.values())


def flags() -> list[str]:
    """Every flag of every command, with its dashes."""
    return sorted({name for _, names, _, _ in _options() for name in names})


def _options() -> Iterator[tuple[str, list[str], str, str]]:
    """Each command's options: the command, their names, what the value is called, the text."""
    group = typer.main.get_command(main.application())
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for one in command.params:
            if getattr(one, "help", None) and one.opts[0].startswith("-"):
                yield name, sorted(one.opts, key=len), one.metavar or "", one.help or ""


def print_flag(console: Console, screen: Screen, found: Sequence[Flag]) -> None:
    """Prints the flag's names, what it does, the commands that take it, and its page."""
    for flag in found:
        line = Text.assemble((flag.spelling, "bold cyan"), f"  {flag.text}")
        console.print(wrapped(line, screen.reading, 2))
        if flag.spelling.endswith(" CHOICE"):
            _print_choices(console, screen, re.split(r"\W+", flag.spelling)[-2])
        names = "every command" if len(flag.commands) >= len(main.COMMANDS) else ""
        names = names or f"grpo {', '.join(flag.commands)}"
        console.print(wrapped(Text(f"  {names}", "dim"), screen.reading, 4))
    pages = flag_pages()
    spellings = {name for flag in found for name in flag.spelling.replace(",", "").split()}
    for name in pages.keys() & spellings:
        print_flag_page(console, screen, pages[name])


def _print_choices(console: Console, screen: Screen, stage: str) -> None:
    """Prints the choices of a stage with their formulas, and what has the frameworks'."""
    from grpo_cli.variants import STAGES  # numpy comes with them

    choices = STAGES[stage].choices
    rows = [{"choice": name, "formula": one.summary} for name, one in choices.items()]
    print_list(
        console, screen, [row for row in rows if "/" not in row["choice"]], ("choice", "formula")
    )
    text = f"grpo help NAME explains one; grpo variants --stage {stage} has the frameworks' too"
    console.print(wrapped(Text(text, "dim"), screen.reading, 2))


# ---- pages, Markdown files: laid out on a terminal, in a pipe as they are ------------------------


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
