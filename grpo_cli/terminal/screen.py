"""Rich, tamed: plain in a pipe, coloured on a terminal, and never a number cut.

Everything is laid out without a right edge. The width decides which columns are shown, not how
much of them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any, BinaryIO, Literal, NamedTuple

from rich.console import Console
from rich.segment import Segment

from grpo_cli.terminal.destination import standard_output
from grpo_cli.terminal.display import colored
from grpo_cli.terminal.numbers import cleaned

_NO_EDGE = 100_000
_USUAL_WIDTH = 80
_READABLE = 120


class Screen(NamedTuple):
    """The screen or page that the result is read on.

    Attributes:
        width: the columns there are; None for no edge.
        color: whether to colour.
        height: the lines of a terminal; None where there is none (a pipe, a file).
    """

    width: int | None = None
    color: bool = False
    height: int | None = None

    @property
    def terminal(self) -> bool:
        """Whether it is a terminal, on which long lines would be broken anywhere."""
        return self.height is not None

    @property
    def edge(self) -> int | None:
        """Where lines that programs read, too, are broken: nowhere but on a terminal."""
        return self.width if self.terminal else None

    @property
    def reading(self) -> int:
        """Where prose ends, and bars: at 120 columns however wide the terminal is."""
        return min(self.width or _READABLE, _READABLE)

    def console(self, *, shades: bool = False) -> CleanConsole:
        """A console that writes into memory; ``written`` reads it.

        Args:
            shades: whether colours are numbers: exactly those of the palette, as many as the
                terminal has. Else they are the terminal's own sixteen, of its own theme.
        """
        many = os.environ.get("COLORTERM") in ("truecolor", "24bit")
        depth: Literal["256", "truecolor"] = "truecolor" if many else "256"
        return CleanConsole(
            file=StringIO(),
            width=_NO_EDGE,
            force_terminal=self.color,
            color_system=(depth if shades else "standard") if self.color else None,
            no_color=not self.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )


class Part(NamedTuple):
    """A part of a page: the line after it, what it is, and how many; None is not counted."""

    end: int
    noun: str
    number: int | None


class CleanConsole(Console):
    """A console that writes no control character but ends of lines, and those of its styles.

    Attributes:
        parts: the named parts of what was printed.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.parts: list[Part] = []

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            Segment(cleaned(one.text), one.style, one.control) for one in buffer
        )


def mark(console: Console, noun: str, count: int | None = 1) -> None:
    """Names what was printed last, which a page that is cut counts if it is left out."""
    mark_rows(console, noun, [count])


def mark_rows(console: Console, noun: str, counts: Sequence[int | None]) -> None:
    """Names what the last lines show: one count a line, 0 where there is nothing to count."""
    assert isinstance(console, CleanConsole)
    assert isinstance(console.file, StringIO)
    first = console.file.getvalue().count("\n") - len(counts)
    console.parts += [Part(first + at, noun, one) for at, one in enumerate(counts, 1) if one != 0]


def written(console: Console) -> str:
    """The text printed so far, without spaces at the ends of lines, which a terminal would wrap."""
    assert isinstance(console.file, StringIO)
    return "".join(f"{_stripped(line)}\n" for line in console.file.getvalue().splitlines())


def _stripped(line: str) -> str:
    line = line.rstrip(" ")  # lines without an edge may be filled with very many
    found = _END.search(line) if line.endswith("m") else None
    return line if found is None else line[: found.start()] + found.group().replace(" ", "")


_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")


def screen_of(stream: BinaryIO) -> Screen:
    """The terminal behind the stream; or a page as wide as COLUMNS says, else 80 columns."""
    if not stream.isatty():
        to_stdout = stream is getattr(standard_output(), "buffer", None)
        given = os.environ.get("COLUMNS", "")
        width = int(given) if given.isdecimal() and int(given) else _USUAL_WIDTH
        return Screen(width, color=to_stdout and colored(terminal=False))
    size = shutil.get_terminal_size()
    return Screen(size.columns, colored(terminal=True), size.lines)
