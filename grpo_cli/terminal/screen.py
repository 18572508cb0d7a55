"""Rich, tamed: plain in a pipe, coloured on a terminal, and never a number cut.

Everything is laid out without a right edge. A terminal's width decides which columns are shown,
not how much of them.
"""

from __future__ import annotations

import os
import re
import shutil
from io import StringIO
from typing import BinaryIO, NamedTuple

from rich.console import Console

_NO_EDGE = 100_000


class Screen(NamedTuple):
    """What the result is read on.

    Attributes:
        width: the columns of a terminal; None where there is no edge (a pipe, a file).
        color: whether to colour.
    """

    width: int | None = None
    color: bool = False

    def console(self) -> Console:
        """A console that writes into memory; ``written`` reads it."""
        return Console(
            file=StringIO(),
            width=_NO_EDGE,
            force_terminal=self.color,
            color_system="standard" if self.color else None,
            no_color=not self.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )


def written(console: Console) -> str:
    """What was printed so far, without spaces at the ends of lines, which a terminal would wrap."""
    assert isinstance(console.file, StringIO)
    return "".join(f"{_stripped(line)}\n" for line in console.file.getvalue().splitlines())


def _stripped(line: str) -> str:
    found = _END.search(line)
    return line if found is None else line[: found.start()] + found.group().replace(" ", "")


_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")


def screen_of(stream: BinaryIO) -> Screen:
    """The terminal behind the stream, or a page without an edge."""
    if not stream.isatty():
        return Screen()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Screen(shutil.get_terminal_size().columns, color=not plain)
