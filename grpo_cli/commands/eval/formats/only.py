"""``--only A,B``: bare values, one row a line, for shell variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import orjson

from grpo_cli.commands.eval.format import Printing, lines_format, no_head, write_lines
from grpo_cli.commands.eval.lines import Lines
from grpo_cli.commands.eval.run import Run
from grpo_cli.terminal.numbers import visible


def _cell(value: Any) -> str:
    """A value without quotes; nothing in it moves the cursor or ends the line."""
    if value is None:
        return ""
    if value in (np.inf, -np.inf):
        return repr(value)
    return visible(value if isinstance(value, str) else orjson.dumps(value).decode())


def _line(cells: Sequence[str], _: Sequence[str]) -> str:
    return "\t".join(cells)


LINES = Lines(_cell, _line, infinite=True)


def _write(run: Run, printing: Printing, variant: str, stream: BinaryIO) -> None:
    write_lines(run, printing, variant, stream, LINES, no_head)


FORMAT = lines_format(LINES, _write)
