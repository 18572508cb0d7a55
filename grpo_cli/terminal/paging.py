"""A page on a terminal: whole where it fits, else its beginning, or all of it in a pager."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import BinaryIO, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import counted
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Part, Screen, screen_of, written

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
    above: Collection[str] = (),
    notes: Iterable[str] = (),
    shades: bool = False,
) -> bool:
    """Writes what ``draw`` prints, and returns whether its end was cut.

    Args:
        stream: where to.
        draw: prints the page.
        beyond: what becomes of a page that is higher than the terminal.
        above: notes that are printed above it.
        notes: what is going to be printed below it, but for those.
        shades: whether it is drawn in shades of the palette.
    """
    screen = screen_of(stream)
    console = screen.console(shades=shades)
    for note in above:
        console.print(wrapped(Text(f"note: {note}", "magenta"), screen.width, 2))
    draw(console, screen)
    below = _lines_of_notes((note for note in notes if note not in above), screen)
    return deliver(written(console), stream, screen, beyond, below=below, parts=console.parts)


def draw_fitting(
    console: Console,
    screen: Screen,
    draw_head: Callable[[Console, Screen], object],
    draw_brief: Callable[[Console, Screen], object],
    draw_rows: Callable[[Console, Screen, int], None],
    most: int,
    notes: Iterable[str] = (),
) -> None:
    """Prints a head and as many rows below it as the terminal has room for, ``most`` of them.

    Args:
        console, screen: where to.
        draw_head: prints what is above the rows, and ``draw_brief`` the least that will do.
        draw_rows: prints so many rows; 0 for all.
        most: how many rows where there is room; 0 for all.
        notes: what is going to be printed below them, and a line that counts the other rows.
    """

    def height(draw: Callable[[Console, Screen], object], rows: int) -> int:
        def both(console: Console, screen: Screen) -> None:
            draw(console, screen)
            draw_rows(console, screen, rows)

        return _height_of(both, screen)

    room = _room(screen, notes)
    if room is not None and height(draw_head, most) > room:
        draw_head = draw_brief
        if height(draw_brief, most) > room:
            room -= 1  # one for the line that counts the other rows
            most = min(1 + max(room - height(draw_brief, 1), 0), most or room)
            while most > 1 and height(draw_brief, most) > room:  # several tables
                most -= 1
    draw_head(console, screen)
    draw_rows(console, screen, most)


def fits(
    draw: Callable[[Console, Screen], object], screen: Screen, notes: Iterable[str] = ()
) -> bool:
    """Whether what ``draw`` prints, and the notes below it, are no higher than the terminal."""
    room = _room(screen, notes)
    return room is None or _height_of(draw, screen) <= room


def _room(screen: Screen, notes: Iterable[str]) -> int | None:
    """The lines above the notes and the prompt; None where there is no end to them."""
    if screen.height is None or chosen().full:
        return None
    return screen.height - _lines_of_notes(notes, screen) - 1


def _height_of(draw: Callable[[Console, Screen], object], screen: Screen) -> int:
    scratch = screen.console()
    draw(scratch, screen)
    return _height(written(scratch), screen)


def deliver(
    text: str,
    stream: BinaryIO,
    screen: Screen,
    beyond: Beyond,
    *,
    below: int = 0,
    parts: Sequence[Part] = (),
) -> bool:
    """Writes a page, and returns whether its end was cut.

    ``below`` is how many lines are going to follow it on the terminal; the ``parts`` of the page
    are what a cut page counts.
    """
    if screen.height is not None and chosen().full:
        beyond = "page"
    high = screen.height is not None and _height(text, screen) >= screen.height - below
    cut = high and beyond == "cut"
    if cut:
        stream.write(_cut(text, screen, below, parts).encode())
    elif not (high and beyond == "page" and chosen().pager and _paged(text)):
        stream.write(text.encode())
    stream.flush()
    return cut


def lines_of(text: str, screen: Screen) -> int:
    """How many lines of the terminal a message takes."""
    return _height(wrapped(Text(text), screen.width, len("grpo: ")).plain + "\n", screen)


def _lines_of_notes(notes: Iterable[str], screen: Screen) -> int:
    return sum(lines_of(f"grpo: note: {note}", screen) for note in notes)


def _height(text: str, screen: Screen) -> int:
    return sum(_rows(line, screen) for line in text.splitlines())


def _rows(line: str, screen: Screen) -> int:
    return max(1, -(-cell_len(_STYLE.sub("", line)) // (screen.width or 1)))


def _cut(text: str, screen: Screen, below: int, parts: Sequence[Part]) -> str:
    """The lines that there is room for, one left for the prompt and one for what is missing."""
    assert screen.height is not None
    lines, kept = text.splitlines(), 0
    room = screen.height - below - 2
    while kept < len(lines) and (rows := _rows(lines[kept], screen)) <= room:
        room -= rows
        kept += 1
    kept = max(kept, 1)
    counts: dict[str, int | None] = {}
    for one in parts:
        if one.end > kept:
            before = counts.get(one.noun) or 0
            counts[one.noun] = None if one.number is None else before + one.number
    more = [noun if n is None else counted(n, f"more {noun}") for noun, n in counts.items()]
    more = more or [counted(len(lines) - kept, "more line")]
    left_out = f"… {', '.join(more)} (use --full)"
    while len(more) > 1 and cell_len(left_out) > (screen.width or 0):
        more.pop()
        left_out = f"… {', '.join(more)}, … (use --full)"
    return "".join(f"{line}\n" for line in [*lines[:kept], left_out])


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
