"""The ``markdown`` format: a table for issues and papers, 6 significant digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

from grpo_cli.commands.eval.format import Printing, lines_format, write_lines
from grpo_cli.commands.eval.lines import Lines
from grpo_cli.commands.eval.run import Run
from grpo_cli.terminal.numbers import shown, visible


def _cell(value: Any) -> str:
    """As in a table, but no string is cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (visible(value) if isinstance(value, str) else shown(value)).replace("|", "\\|")


def _line(cells: Sequence[str], _: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


LINES = Lines(_cell, _line, infinite=True, as_json=False)


def head(names: Sequence[str]) -> bytes:
    """The first two lines of a table."""
    return f"{_line(names, ())}\n{_line(['---'] * len(names), ())}\n".encode()


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    write_lines(run, printing, variant, stream, LINES, head)


FORMAT = lines_format(LINES, _write)
