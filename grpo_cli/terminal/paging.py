"""A page on a terminal: whole where it fits, else its beginning, or all of it in a pager."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import BinaryIO, Literal

from rich.cells import cell_len
from rich.console import Console

from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.screen import Screen, screen_of, written

Beyond = Literal["cut", "page", "print"]
"""What to do with a page that is higher than the terminal: its end is cut, since its answer comes
first; or it goes to the pager, since all of it was asked for; or it is printed, since its answer
comes last."""

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def print_page(
    stream: BinaryIO,
    draw: Callable[[Console, Screen], object],
    beyond: Beyond,
    *,
    notes: Iterable[str] = (),
    shades: bool = False,
) -> None:
    """Writes what ``draw`` prints.

    Args:
        stream: where to.
        draw: prints the page.
        beyond: what becomes of a page that is higher than the terminal.
        notes: what is going to be printed below it.
        shades: whether it is drawn in shades of the palette.
    """
    screen = screen_of(stream)
    console = screen.console(shades=shades)
    draw(console, screen)
    below = sum(lines_of(f"grpo: note: {note}", screen) for note in notes)
    deliver(written(console), stream, screen, beyond, below=below)


def draw_fitting(
    console: Console,
    screen: Screen,
    draw: Callable[[Console, Screen, int], None],
    most: int,
    notes: Iterable[str] = (),
) -> None:
    """Prints as many rows as the terminal has room for below what is printed, ``most`` of them.

    Args:
        console, screen: where to.
        draw: prints so many rows; 0 for all.
        most: how many rows where there is room; 0 for all.
        notes: what is going to be printed below them, and a line that counts the other rows.
    """
    rows = screen.console()
    draw(rows, screen, most)
    if screen.height is not None and not chosen().full:
        below = sum(lines_of(f"grpo: note: {note}", screen) for note in notes)
        used = _height(written(console), screen) + below + 1
        table = _height(written(rows), screen)
        if used + table >= screen.height:
            rows = screen.console()
            draw(rows, screen, 1)
            room = screen.height - used - 1 - _height(written(rows), screen)
            if room > 0:
                rows = screen.console()
                draw(rows, screen, min(1 + room, most or 1 + room))
    console.file.write(written(rows))


def deliver(text: str, stream: BinaryIO, screen: Screen, beyond: Beyond, *, below: int = 0) -> None:
    """Writes a page; ``below`` is how many lines are going to follow it on the terminal."""
    if screen.height is not None and chosen().full:
        beyond = "page"
    if screen.height is None or beyond == "print" or _height(text, screen) < screen.height - below:
        stream.write(text.encode())
    elif beyond == "cut":
        stream.write(_cut(text, screen, below).encode())
    elif not (chosen().pager and _paged(text)):
        stream.write(text.encode())
    stream.flush()


def lines_of(text: str, screen: Screen) -> int:
    """How many lines of the terminal a message takes."""
    return _height(text + "\n", screen)


def _height(text: str, screen: Screen) -> int:
    return sum(_rows(line, screen) for line in text.splitlines())


def _rows(line: str, screen: Screen) -> int:
    return max(1, -(-cell_len(_STYLE.sub("", line)) // (screen.width or 1)))


def _cut(text: str, screen: Screen, below: int) -> str:
    """The lines that there is room for, one left for the prompt and one for what is missing."""
    assert screen.height is not None
    lines, kept = text.splitlines(), 0
    room = screen.height - below - 2
    while kept < len(lines) and (rows := _rows(lines[kept], screen)) <= room:
        room -= rows
        kept += 1
    kept = max(kept, 1)
    more = len(lines) - kept
    return "".join(f"{line}\n" for line in [*lines[:kept], f"… {more:,} more lines: --full"])


def _paged(text: str) -> bool:
    """Shows the text in the pager, and says whether there is one."""
    command = _pager()
    if not command:
        return False
    environment = {"LESS": "FRX", **os.environ}
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGPIPE)}
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
            for one in before:  # Ctrl-C is the pager's, and it may end before it has read all
                signal.signal(one, signal.SIG_IGN)
            process.communicate(text.encode())
            return process.returncode != _NOT_FOUND
    except OSError:
        return False
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


_NOT_FOUND = 127


def _pager() -> list[str]:
    given = os.environ.get("PAGER")
    if given is not None:
        return [] if given.strip() in ("", "cat") else ["sh", "-c", given]
    if os.environ.get("TERM", "dumb") == "dumb":
        return []
    names = ("less", "more")
    return next(([path] for name in names if (path := shutil.which(name))), [])
