"""What ``grpo help --FLAG`` prints: a flag's text, and the commands that have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import typer.main
from rich.console import Console
from rich.text import Text

from grpo_cli.commands import main
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen


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
    for command, options in _options():
        for names, metavar, text in options:
            if spelled in names:
                spelling = " ".join([", ".join(names), metavar]).rstrip()
                found.setdefault((spelling, text), Flag(spelling, text, [])).commands.append(
                    command
                )
    return list(found.values())


def flags() -> list[str]:
    """Every flag of every command, with its dashes."""
    return sorted({name for _, options in _options() for names, _, _ in options for name in names})


def _options() -> list[tuple[str, list[tuple[Sequence[str], str, str]]]]:
    group = typer.main.get_command(main.application())
    return [
        (
            name,
            [
                (sorted(one.opts, key=len), one.metavar or "", one.help or "")
                for one in command.params
                if hasattr(one, "help") and one.opts[0].startswith("-")
            ],
        )
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    ]


def print_flag(console: Console, screen: Screen, found: Sequence[Flag]) -> None:
    """Prints the flag's names, what it does, and the commands that take it."""
    for flag in found:
        line = Text.assemble((flag.spelling, "bold cyan"), f"  {flag.text}")
        console.print(wrapped(line, screen.reading, 2))
        names = "every command" if len(flag.commands) >= len(main.COMMANDS) else ""
        names = names or f"grpo {', '.join(flag.commands)}"
        console.print(wrapped(Text(f"  {names}", "dim"), screen.reading, 4))
