"""How results are displayed: what the flags that every command has, and the environment, say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

When = Literal["auto", "always", "never"]


class Display(NamedTuple):
    """The choices that hold for all that a command prints.

    Attributes:
        color: when to colour.
        full: whether to print on a terminal what goes beyond its height.
        pager: whether that may go through a pager.
        to_file: whether the result goes to a file: what is on the terminal is for a person.
    """

    color: When = "auto"
    full: bool = False
    pager: bool = True
    to_file: bool = False


_CHOSEN: ContextVar[Display] = ContextVar("display", default=Display())  # noqa: B039 - immutable


def chosen() -> Display:
    """The display of the command that runs."""
    return _CHOSEN.get()


@contextmanager
def displaying(display: Display) -> Iterator[None]:
    """Prints so, inside the block."""
    token = _CHOSEN.set(display)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def colored(*, terminal: bool) -> bool:
    """Whether to colour: the flag, or NO_COLOR, or what forces it, or else a terminal that can."""
    wanted = chosen().color
    if wanted != "auto":
        return wanted == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if any(
        os.environ.get(name, "0") not in ("", "0") for name in ("CLICOLOR_FORCE", "FORCE_COLOR")
    ):
        return True
    return terminal and os.environ.get("TERM") != "dumb" and os.environ.get("CLICOLOR") != "0"
