"""``grpo help``: the longer pages, and the flags of a command."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from grpo_cli.commands import main
from grpo_cli.commands.help.manual import manual
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
        help="A page, or a command; without one, the list of both.",
        autocompletion=lambda incomplete: [n for n in _names() if n.startswith(incomplete)],
        show_default=False,
    ),
]
Man = Annotated[bool, typer.Option("--man", help="The manual page, as man(1) reads it.")]


def show_help(*, topic: Topic = None, man: Man = False) -> None:
    """Show a page of help, or the flags of a command.

    \b
    grpo help
    grpo help eval
    grpo help input
    grpo help --man > grpo.1

    A page is Markdown: laid out on a terminal, as it was written in a pipe.
    """  # noqa: D301 - \b is for the help's formatter
    with failures():
        if man:
            page = manual(main.application(), topics())
            with destination(None) as stream:
                stream.write(page.encode())
            return
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


def _names() -> list[str]:
    return [*dict.fromkeys([*topics(), *main.COMMANDS])]
