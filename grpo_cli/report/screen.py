"""Rich, tamed: plain in a pipe, coloured on a terminal, and never a number cut.

Everything is laid out without a right edge. A terminal's width decides which columns are shown,
not how much of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO

from rich.console import Console

_NO_EDGE = 100_000


@dataclass(frozen=True)
class Screen:
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
    """What was printed so far, without spaces at the ends of lines."""
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def wants_color(environment: Mapping[str, str]) -> bool:
    """Whether a terminal is to be coloured."""
    return not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
