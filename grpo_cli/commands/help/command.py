"""``grpo help``: the longer pages, and the flags of a command."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from grpo_cli.commands import main
from grpo_cli.commands.help.view import laid_out, print_contents, text, topics
from grpo_cli.commands.options import complete
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.paging import print_page
from grpo_cli.terminal.screen import Screen

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC|COMMAND",
        help="A page, a command or a word; default: a list.",
        autocompletion=lambda incomplete: [n for n in _names() if n.startswith(incomplete)],
        show_default=False,
    ),
]


def show_help(*, topic: Topic = None) -> None:
    """Show a page of help, the options of a command, or what a word means.

    \b
    grpo help
    grpo help eval
    grpo help input
    grpo help dapo

    A page is Markdown: laid out on a terminal, unchanged in a pipe.
    """  # noqa: D301 - \b is for the help's formatter
    with failures():
        if topic is not None and topic not in _names() and _is_explained(topic):
            main.application("explain")(["explain", topic], prog_name="grpo")
        name = None if topic is None else complete.known("grpo help", topic, _names())
        if name is None or name in topics():
            _print_page(name)
    if name is not None and name in main.COMMANDS:
        main.application(name)([name, "--help"], prog_name="grpo")
    raise typer.Exit


def _print_page(topic: str | None) -> None:
    def draw(console: Console, screen: Screen) -> None:
        if topic is None:
            print_contents(console, screen, main.described(), topics())
        else:
            console.file.write(f"{laid_out(screen, text(topic)).rstrip()}\n")

    with destination(None) as stream:
        print_page(stream, draw, "page")


def _is_explained(name: str) -> bool:
    """Whether ``grpo explain`` knows a variant, a choice or a word of that name."""
    from grpo_cli.commands.explain.choice import is_choice  # numpy comes with them
    from grpo_cli.commands.help.words import look_up
    from grpo_cli.variants import NAMES

    return name.lower() in NAMES or is_choice(name.lower()) or look_up(name) is not None


def _names() -> list[str]:
    return [*dict.fromkeys([*topics(), *main.COMMANDS])]
