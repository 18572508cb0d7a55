"""How a flag is declared: once, with one text for every command, and the panel that lists it."""

from __future__ import annotations

from typing import Any, Literal

import typer

Panel = Literal["Objective", "Input", "Output", "Page", "Running"]
"""Where ``--help-all`` lists a flag. ``--help`` lists those without a panel."""

ALL = "grpo.help_all"
"""The key of Typer's context under which ``--help-all`` says that all panels are to be printed."""


def option(flags: str, metavar: str, text: str, panel: Panel | None = None, **more: Any) -> Any:
    """A flag for ``Annotated``.

    Args:
        flags: its spellings, between spaces.
        metavar: what its value is called; "" for a flag without a value.
        text: what it does, and its default, for ``--help``.
        panel: where ``--help-all`` lists it; None for ``--help`` as well.
        more: what ``typer.Option`` takes.
    """
    return typer.Option(
        *flags.split(),
        metavar=metavar or None,
        help=text,
        rich_help_panel=panel,
        show_default=False,
        **more,
    )


def argument(metavar: str, text: str, **more: Any) -> Any:
    """A positional argument for ``Annotated``.

    Args:
        metavar: what it is called.
        text: what it is, for ``--help``.
        more: what ``typer.Argument`` takes.
    """
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)
